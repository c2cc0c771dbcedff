//! A request for a lease in the words of the schema.
//!
//! A request may stand for several things: two ports, a directory with all that is in it. A
//! rule looks at one thing at a time, so there is a case for each, and others beside them that
//! only what is forbidden counts in.

use crate::Case;
use cedar_policy::{
    Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Request, RestrictedExpression,
    Schema,
};
use ironcage_model::{
    Destination, HostRule, HttpRule, LeaseOrigin, LimitKind, Ports, Resource, Right, Scope, Term,
};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::path::Path;
use std::str::FromStr as _;

type CedarResult<T> = Result<T, Box<dyn Error>>;

/// One thing that is asked for.
pub(crate) struct OneCase {
    pub(crate) request: Request,
    pub(crate) entities: Entities,
    /// Whether a rule that permits it counts: else only what forbids it does.
    pub(crate) permits: bool,
}

/// All cases of a request.
pub(crate) enum Cases {
    All {
        cases: Vec<OneCase>,
        /// Why somebody is asked at least: it stands for requests that no rule has looked at.
        at_least_asked: Option<&'static str>,
    },
    /// It stands for more than can be looked at one by one.
    Several(&'static str),
}

const SEVERAL_HOSTS: &str = "rules look at one host at a time; ask for one by its name";
const EVERY_PORT: &str = "rules look at one port at a time; ask for one";
const SEVERAL_REQUESTS: &str = "rules look at one request at a time, by its method and its path";
const ANY_REQUEST: &str =
    "rules forbid some requests, and who may connect sends any; ask for requests";

/// Something that can be asked for, by action, kind, name and attributes.
struct Thing {
    action: &'static str,
    kind: &'static str,
    name: String,
    attributes: Vec<(&'static str, RestrictedExpression)>,
    /// Names of the same kind that it is in.
    above: Vec<String>,
    permits: bool,
}

fn text(value: impl Into<String>) -> RestrictedExpression {
    RestrictedExpression::new_string(value.into())
}

fn truth(value: bool) -> RestrictedExpression {
    RestrictedExpression::new_bool(value)
}

fn number(value: impl TryInto<i64>) -> RestrictedExpression {
    RestrictedExpression::new_long(value.try_into().unwrap_or(i64::MAX))
}

/// What rules forbid that whoever asks for more would get too.
#[derive(Debug, Default)]
pub(crate) struct Forbidden {
    pub(crate) paths: Vec<String>,
    /// Whether there are requests among it: a connection carries all of them.
    pub(crate) requests: bool,
}

/// Makes the cases of a request.
pub(crate) fn make(case: &Case<'_>, forbidden: &Forbidden, schema: &Schema) -> CedarResult<Cases> {
    let things = match things(case.resource, &forbidden.paths) {
        Ok(things) => things,
        Err(several) => return Ok(Cases::Several(several)),
    };
    let at_least_asked = match case.resource {
        Resource::Http { rule } if stands_for_several(rule) => Some(SEVERAL_REQUESTS),
        Resource::Host { .. } if forbidden.requests => Some(ANY_REQUEST),
        _ => None,
    };
    let cases = things.into_iter().map(|thing| one(case, thing, schema));
    let cases = cases.collect::<CedarResult<Vec<OneCase>>>()?;
    Ok(Cases::All {
        cases,
        at_least_asked,
    })
}

fn stands_for_several(rule: &HttpRule) -> bool {
    rule.methods.is_empty() || rule.path.to_string().contains('*')
}

fn things(resource: &Resource, literals: &[String]) -> Result<Vec<Thing>, &'static str> {
    let single = |action, kind, name: &str, attributes| {
        vec![Thing {
            action,
            kind,
            name: name.to_owned(),
            attributes,
            above: Vec::new(),
            permits: true,
        }]
    };
    Ok(match resource {
        Resource::Path { path, right } => paths(path, *right, literals),
        Resource::Host { rule } => hosts(rule)?,
        Resource::Http { rule } => requests(rule)?,
        Resource::Secret { name } => single("secret", "Secret", name, vec![("name", text(name))]),
        Resource::Socket { path } => single("socket", "Socket", path, vec![("path", text(path))]),
        Resource::Port { publish } => {
            let attributes = vec![
                ("inner", number(publish.inner)),
                ("outer", number(publish.outer)),
            ];
            single("port", "Port", &publish.to_string(), attributes)
        }
        Resource::Limit { limit, value } => {
            let action = match limit {
                LimitKind::Memory => "memory",
                LimitKind::Cpus => "cpus",
                LimitKind::Pids => "pids",
                _ => return Err("no lease raises this limit"),
            };
            single(action, "Limit", action, vec![("value", number(*value))])
        }
        Resource::Syscalls { group } => {
            single("syscalls", "Syscalls", group, vec![("group", text(group))])
        }
        Resource::Capability { name } => {
            single("capability", "Capability", name, vec![("name", text(name))])
        }
        Resource::Key { .. } => return Err("no lease gives a key"),
    })
}

/// A path with what comes along: reading where it is to be written, and whatever is below it that
/// a rule forbids.
fn paths(path: &str, right: Right, literals: &[String]) -> Vec<Thing> {
    let thing = |path: &str, action, permits| Thing {
        action,
        kind: "Path",
        name: path.to_owned(),
        attributes: vec![
            ("path", text(path)),
            ("name", text(path.rsplit('/').next().unwrap_or_default())),
        ],
        above: (Path::new(path).ancestors().skip(1))
            .filter_map(|above| above.to_str().map(str::to_owned))
            .collect(),
        permits,
    };
    let mut below = vec![path];
    below.extend(
        literals
            .iter()
            .map(String::as_str)
            .filter(|literal| *literal != path && Path::new(literal).starts_with(path)),
    );
    let mut all = Vec::new();
    for (at, path) in below.into_iter().enumerate() {
        all.push(thing(path, right.name(), at == 0));
        if right == Right::Write {
            all.push(thing(path, Right::Read.name(), false));
        }
    }
    all
}

fn host_name(rule: &HostRule) -> Result<String, &'static str> {
    match &rule.to {
        Destination::Name(name) => Ok(name.as_str().to_owned()),
        Destination::Net { address, prefix } => {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            match *prefix == whole {
                true => Ok(address.to_string()),
                false => Err(SEVERAL_HOSTS),
            }
        }
        Destination::Any | Destination::Below(_) | Destination::NameAndBelow(_) => {
            Err(SEVERAL_HOSTS)
        }
    }
}

fn ports(rule: &HostRule) -> Result<Vec<u16>, &'static str> {
    match rule.ports {
        Ports::Web => Ok(vec![80, 443]),
        Ports::One(port) => Ok(vec![port]),
        Ports::Any => Err(EVERY_PORT),
    }
}

fn hosts(rule: &HostRule) -> Result<Vec<Thing>, &'static str> {
    let host = host_name(rule)?;
    let thing = |port: u16| Thing {
        action: "host",
        kind: "Host",
        name: format!("{host}:{port}"),
        attributes: vec![("host", text(&host)), ("port", number(port))],
        above: Vec::new(),
        permits: true,
    };
    Ok(ports(rule)?.into_iter().map(thing).collect())
}

/// Requests, each method by itself; and the host, since who may not be connected to may not be
/// sent any.
fn requests(rule: &HttpRule) -> Result<Vec<Thing>, &'static str> {
    let mut all = hosts(&rule.host)?;
    for thing in &mut all {
        thing.permits = false;
    }
    let host = host_name(&rule.host)?;
    let path = rule.path.to_string();
    let every = ["*".to_owned()];
    let methods = match rule.methods.is_empty() {
        true => every.as_slice(),
        false => rule.methods.as_slice(),
    };
    // What a pattern stands for, no rule has looked at.
    let permits = !stands_for_several(rule);
    for port in ports(&rule.host)? {
        all.extend(methods.iter().map(|method| Thing {
            action: "http",
            kind: "Http",
            name: format!("{method} {host}:{port}{path}"),
            attributes: vec![
                ("host", text(&host)),
                ("port", number(port)),
                ("method", text(method)),
                ("path", text(&path)),
            ],
            above: Vec::new(),
            permits,
        }));
    }
    Ok(all)
}

fn uid(kind: &str, name: &str) -> CedarResult<EntityUid> {
    let kind = EntityTypeName::from_str(kind)?;
    // Never as a part of some text: the name is an attacker's.
    Ok(EntityUid::from_type_name_and_id(kind, EntityId::new(name)))
}

fn entity(
    uid: EntityUid,
    attributes: Vec<(&str, RestrictedExpression)>,
    above: HashSet<EntityUid>,
) -> CedarResult<Entity> {
    let attributes = attributes.into_iter();
    let attributes: HashMap<String, RestrictedExpression> = attributes
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    Ok(Entity::new(uid, attributes, above)?)
}

fn one(case: &Case<'_>, thing: Thing, schema: &Schema) -> CedarResult<OneCase> {
    let (plan, asked) = (case.plan, case.asked);
    let cage = uid("Cage", "cage")?;
    let workspace = plan.workspace.to_string_lossy();
    let principal = entity(
        cage.clone(),
        vec![
            ("profile", text(&plan.profile)),
            ("workspace", text(workspace)),
            (
                "isolation",
                text(plan.isolation_level.what.isolation.name()),
            ),
            ("distrusted", truth(case.history.distrusted)),
            ("private", truth(case.history.taint.private)),
            ("untrusted", truth(case.history.taint.untrusted)),
        ],
        HashSet::new(),
    )?;
    let above: CedarResult<HashSet<EntityUid>> = thing
        .above
        .iter()
        .map(|name| uid(thing.kind, name))
        .collect();
    let name = uid(thing.kind, &thing.name)?;
    let resource = entity(name.clone(), thing.attributes, above?)?;
    let mut context = vec![
        ("origin".to_owned(), text(origin(asked.origin))),
        ("scoped".to_owned(), truth(asked.scope != Scope::Cage)),
        ("open".to_owned(), number(case.history.open.len())),
        ("asked".to_owned(), number(case.history.asked)),
    ];
    if let Term::Milliseconds(time) = asked.term {
        context.push(("milliseconds".to_owned(), number(time)));
    }
    if let Some(uses) = asked.uses {
        context.push(("uses".to_owned(), number(uses)));
    }
    let request = Request::new(
        cage,
        uid("Action", thing.action)?,
        name,
        Context::from_pairs(context)?,
        Some(schema),
    )?;
    Ok(OneCase {
        request,
        entities: Entities::from_entities([principal, resource], Some(schema))?,
        permits: thing.permits,
    })
}

/// Who asks, as rules write it.
const fn origin(origin: LeaseOrigin) -> &'static str {
    match origin {
        LeaseOrigin::Operator => "operator",
        LeaseOrigin::ToolCall => "tool-call",
        LeaseOrigin::Ask => "ask",
        LeaseOrigin::Answer => "answer",
        LeaseOrigin::Shell => "shell",
    }
}
