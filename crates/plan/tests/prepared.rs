//! A plan in two parts: together they are the plan, and the static one holds nothing of a tenant.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::Privilege;
use ironcage_model::CageId;
use ironcage_plan::{
    Access, Bindings, BoundPlan, Item, NodeKind, OwnPart, Plan, StaticPart, Unfit, ViewOp,
};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use std::path::Path;

fn plan() -> Plan {
    plan_of(
        "shell",
        FlagLayer::default(),
        &request(),
        &host(Privilege::User),
    )
    .unwrap()
}

fn bound<'a>(plan: &'a Plan, id: &'a CageId) -> BoundPlan<'a> {
    plan.bind(Bindings {
        cage: id,
        processors: &[],
        change: None,
        files: Vec::new(),
    })
    .unwrap()
}

fn id() -> CageId {
    CageId::from_entropy([7; 12])
}

fn ops(view: &[Item<ViewOp>]) -> Vec<&ViewOp> {
    view.iter().map(|item| &item.what).collect()
}

/// A system directory, as every tenant has it.
fn system(path: &str) -> Item<ViewOp> {
    Item {
        what: ViewOp::Bind {
            source: path.into(),
            target: path.into(),
            access: Access::Read,
            kind: NodeKind::Directory,
            owner: None,
        },
        origin: "test".into(),
    }
}

#[test]
fn both_parts_together_are_the_plan_after_a_journey_too() {
    let plan = plan();
    let part = StaticPart::of(&plan).unwrap();
    let id = id();
    let own = part.own_part(&bound(&plan, &id)).unwrap();
    assert!(!part.plan().view.is_empty() && !own.view.is_empty());
    let (arrived, authority) = OwnPart::decode(&own.encode("a certificate")).unwrap();
    assert_eq!(authority, "a certificate");
    let complete = part.complete(arrived);
    // Every operation once; those of each part in their order.
    let mut left = ops(&complete.view);
    for op in ops(&plan.view) {
        let at = left.iter().position(|one| *one == op);
        left.remove(at.unwrap_or_else(|| panic!("{op:?} got lost")));
    }
    assert_eq!(left, Vec::<&ViewOp>::new());
    assert_eq!(complete.command.argv, plan.command.argv);
    assert_eq!(complete.command.candidates, plan.command.candidates);
    assert_eq!(complete.command.cwd, plan.command.cwd);
    let variables = |plan: &Plan| {
        let env = plan.command.env.iter();
        env.map(|item| item.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(variables(&complete), variables(&plan));
    let rules = |plan: &Plan| {
        let rules = plan.write_rules.iter();
        rules.map(|item| item.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(rules(&complete), rules(&plan));
    assert_eq!(complete.seccomp, plan.seccomp);
    assert_eq!(complete.rlimits, plan.rlimits);
}

#[test]
fn the_static_part_holds_nothing_of_a_tenant() {
    let plan = plan();
    let part = StaticPart::of(&plan).unwrap();
    let text = format!("{:?} {:?}", part.plan().view, part.plan().command);
    let workspace = plan.workspace.to_str().unwrap();
    // The allowing arm: it is in the plan.
    assert!(format!("{:?}", plan.view).contains(workspace));
    assert!(!text.contains(workspace), "{text}");
    assert!(part.plan().command.argv.is_empty() && part.plan().command.env.is_empty());
}

#[test]
fn a_plan_that_differs_in_a_layer_is_not_adopted() {
    let plan = plan();
    let part = StaticPart::of(&plan).unwrap();
    let id = id();
    let refused = |change: fn(&mut Plan)| {
        let mut other = plan.clone();
        change(&mut other);
        part.own_part(&bound(&other, &id)).unwrap_err()
    };
    assert!(part.own_part(&bound(&plan, &id)).is_ok());
    assert_eq!(
        refused(|plan| plan.bounds.memory.what.value += 1),
        Unfit::Differs("limits")
    );
    assert_eq!(
        refused(|plan| plan.landlock = !plan.landlock),
        Unfit::Differs("Landlock rules")
    );
    assert_eq!(
        refused(|plan| {
            let _ = plan.seccomp.program.pop();
        }),
        Unfit::Differs("system call filter")
    );
    assert_eq!(
        refused(|plan| drop(plan.rlimits.pop())),
        Unfit::Differs("rlimits")
    );
    assert_eq!(
        refused(|plan| plan.identity.uid += 1),
        Unfit::Differs("identity")
    );
}

#[test]
fn what_a_tenant_mounts_below_a_static_place_keeps_its_order_or_is_refused() {
    let plan = plan();
    let id = id();
    let part = StaticPart::of(&plan).unwrap();
    let usr = |op: &Item<ViewOp>| op.what.target() == Some(Path::new("/usr"));
    let at = plan.view.iter().position(usr).unwrap();
    // After the static mount, as in the plan: an own operation.
    let mut after = plan.clone();
    after.view.insert(at + 1, system("/usr/share/tenant"));
    let own = part.own_part(&bound(&after, &id)).unwrap();
    assert!(ops(&own.view).contains(&&after.view[at + 1].what));
    // Before it, the plan lets the static mount cover the tenant's: that cannot be prepared.
    let mut before = plan.clone();
    before.view.insert(at, system("/usr/share/tenant"));
    assert_eq!(
        part.own_part(&bound(&before, &id)).unwrap_err(),
        Unfit::View
    );
    // A plan without a static operation, too.
    let mut without = plan.clone();
    without.view.remove(at);
    assert_eq!(
        part.own_part(&bound(&without, &id)).unwrap_err(),
        Unfit::View
    );
}

#[test]
fn an_own_part_that_was_cut_or_goes_on_is_refused() {
    let plan = plan();
    let id = id();
    let own = StaticPart::of(&plan)
        .unwrap()
        .own_part(&bound(&plan, &id))
        .unwrap();
    let bytes = own.encode("");
    assert!(OwnPart::decode(&bytes).is_some());
    for length in 0..bytes.len() {
        assert!(OwnPart::decode(&bytes[..length]).is_none(), "{length}");
    }
    let mut more = bytes;
    more.push(0);
    assert!(OwnPart::decode(&more).is_none());
}
