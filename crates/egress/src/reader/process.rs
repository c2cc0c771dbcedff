//! The reader's process: one socket, memory, and parsers.

use super::{ENCODINGS, Frame, HEAD, LONGEST, PART};
use crate::confine::{self, ProxyIds};
use ironcage_intent::{
    AnswerPart, AnswerReader, Call, Calls, Context, Destination, Encoding, Format, Mention,
    Mentions, Needs, Results, Table,
};
use ironcage_model::{
    Announced, Contact, DeniedCall, Intent, MOST_INTENDED, Overheard, Reason, ToolReason,
};
use ironcage_plan::Models;
use ironcage_reader::Reader;
use ironcage_tools::ToolPolicy;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Longest text of an intent: longer ones name nothing that there is.
const TEXT: usize = 1024;
/// Longest id of a call.
const ID: usize = 200;
/// Longest path that is told of words.
const ANNOUNCED: usize = 400;
/// Places that a call takes away, of those that are told: together they fit.
const MOST_RUINED: usize = 2;
/// Longest text about a call that is denied.
const DENIAL: usize = 512;
/// Calls whose results are waited for.
const CALLS: usize = 256;

/// Reads until the proxy is gone.
pub(super) fn run(
    models: &Models,
    ids: Option<ProxyIds>,
    parent: i32,
    socket: UnixStream,
) -> io::Result<()> {
    let wrong = |error: confine::ConfineError| io::Error::other(error.in_full());
    confine::detach(Some(parent), &[socket.as_fd()], c"ironcage-reader").map_err(wrong)?;
    confine::confine_reader(&models.reader_filter, ids).map_err(wrong)?;
    let context = Context {
        cwd: models.cwd.clone(),
        home: models.home.as_ref().map(PathBuf::from),
    };
    let mut process = Process {
        reading: Reading::new(context, models.tools.clone()),
        socket,
    };
    let mut content = Vec::new();
    loop {
        let mut head = [0; HEAD];
        if process.socket.read_exact(&mut head).is_err() {
            return Ok(());
        }
        let [kind, b0, b1, b2, b3, l0, l1, l2, l3] = head;
        let body = u32::from_le_bytes([b0, b1, b2, b3]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let kind = Frame::read(kind).filter(|_| length <= PART);
        let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
        content.resize(length, 0);
        process.socket.read_exact(&mut content)?;
        for overheard in process.reading.frame(kind, body, &content) {
            process.say(&overheard)?;
        }
    }
}

struct Process {
    reading: Reading,
    socket: UnixStream,
}

impl Process {
    fn say(&mut self, overheard: &Overheard) -> io::Result<()> {
        let text = serde_json::to_vec(overheard)?;
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend(text);
        self.socket.write_all(&bytes)
    }
}

/// What is known of tools.
#[derive(Debug)]
struct Tables {
    calls: Calls,
    tools: Table,
}

#[derive(Debug)]
enum Body {
    Request(Box<Results>),
    Answer(Box<AnswerReader>, Mentions),
}

/// The bodies that are being read.
#[derive(Debug)]
pub(super) struct Reading {
    context: Context,
    rules: ToolPolicy,
    /// Read with the first call.
    tables: Option<Tables>,
    bodies: HashMap<u32, Body>,
    /// Ids of calls that were told.
    told: VecDeque<String>,
}

impl Reading {
    pub(super) fn new(context: Context, rules: ToolPolicy) -> Self {
        Reading {
            context,
            rules,
            tables: None,
            bodies: HashMap::new(),
            told: VecDeque::new(),
        }
    }

    /// Takes a frame of the proxy's. Returns what is to be told.
    pub(super) fn frame(&mut self, kind: Frame, number: u32, content: &[u8]) -> Vec<Overheard> {
        let encoding = |at: usize| {
            let index = content.get(at).copied().unwrap_or_default();
            let known = ENCODINGS.get(usize::from(index));
            known.copied().unwrap_or(Encoding::Identity)
        };
        match kind {
            Frame::Request => {
                let results = Box::new(Results::new(encoding(0)));
                self.bodies.insert(number, Body::Request(results));
                Vec::new()
            }
            Frame::Answer => {
                let format = match content.get(1) {
                    Some(1) => Format::Events,
                    _ => Format::Document,
                };
                let answer = Box::new(AnswerReader::new(format, encoding(0)));
                let body = Body::Answer(answer, Mentions::default());
                self.bodies.insert(number, body);
                Vec::new()
            }
            Frame::More => match self.bodies.remove(&number) {
                Some(Body::Request(mut results)) => {
                    let ids = results.feed(content);
                    self.bodies.insert(number, Body::Request(results));
                    self.returned(ids)
                }
                Some(Body::Answer(mut answer, mut mentions)) => {
                    let told = self.said(answer.feed(content), &mut mentions);
                    self.bodies.insert(number, Body::Answer(answer, mentions));
                    told
                }
                None => Vec::new(),
            },
            Frame::End => match self.bodies.remove(&number) {
                Some(Body::Answer(answer, mut mentions)) => {
                    let mut told = self.said(answer.end(), &mut mentions);
                    mentions.pause(&self.context);
                    told.extend(announced(&mut mentions));
                    told
                }
                Some(Body::Request(_)) | None => Vec::new(),
            },
            Frame::Lost => {
                self.bodies.remove(&number);
                Vec::new()
            }
        }
    }

    /// A request repeats the results of all that was before: each is told once.
    fn returned(&mut self, mut ids: Vec<String>) -> Vec<Overheard> {
        ids.retain(|id| {
            let place = self.told.iter().position(|told| told == id);
            place.is_some_and(|place| self.told.remove(place).is_some())
        });
        let told = ids.chunks(MOST_INTENDED);
        told.map(|ids| Overheard::Returned(ids.to_vec())).collect()
    }

    fn said(&mut self, said: Vec<AnswerPart>, mentions: &mut Mentions) -> Vec<Overheard> {
        let mut told = Vec::new();
        for said in said {
            match said {
                AnswerPart::Call(call) => {
                    // What was announced is known before what is done.
                    mentions.pause(&self.context);
                    told.extend(announced(mentions));
                    told.extend(self.call(&call));
                }
                AnswerPart::Words(text) => mentions.read(&text, &self.context),
                AnswerPart::Pause => mentions.pause(&self.context),
                AnswerPart::NotRead(why) => told.push(not_read(why)),
            }
        }
        told
    }

    fn call(&mut self, call: &Call) -> Option<Overheard> {
        if self.tables.is_none() {
            // It has no files: code is followed where the call carries it.
            self.tables = match (Calls::shipped(), Table::shipped(), Reader::without_files()) {
                (Ok(calls), Ok(tools), Ok(reader)) => {
                    let tools = tools.following(Box::new(reader));
                    Some(Tables { calls, tools })
                }
                _ => return Some(not_read("cannot read the tool tables".into())),
            };
        }
        let Tables { calls, tools } = self.tables.as_ref()?;
        let needs = calls.needs(call, tools, &self.context);
        let removes = ruins(&needs, &self.context);
        let mut intent = intent(call, &needs, removes, calls.is_shell(call));
        let named = ironcage_tools::Call::named(&call.name, &call.input, Some(&self.context.cwd));
        if !self.rules.is_empty()
            && let Some((reason, rule)) = self.rules.refusal(&named)
        {
            deny(&mut intent, reason, rule);
        }
        if let Some(id) = &intent.id {
            if self.told.len() >= CALLS {
                self.told.pop_front();
            }
            self.told.push_back(id.clone());
        }
        Some(Overheard::Call(intent))
    }
}

/// What words name that was not told yet, in as many messages as it takes.
fn announced(mentions: &mut Mentions) -> Vec<Overheard> {
    let new = mentions.take();
    // Few enough that they fit, however they are escaped.
    let told = new.chunks(MOST_INTENDED / 4).map(|some| {
        let mut words = Announced::default();
        for mention in some {
            match mention {
                Mention::Path(path) => {
                    let short = path.to_str().filter(|path| path.len() <= ANNOUNCED);
                    words.paths.extend(short.map(str::to_owned));
                }
                Mention::Host(name) => words.hosts.push(name.clone()),
            }
        }
        Overheard::Words(words)
    });
    told.collect()
}

fn not_read(mut why: String) -> Overheard {
    cut(&mut why, ID);
    Overheard::NotRead { times: 1, why }
}

fn cut(text: &mut String, longest: usize) {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
}

/// What a call needs, in few words. What does not fit makes it one that may do more.
fn intent(call: &Call, needs: &Needs, removes: Vec<String>, shell: bool) -> Intent {
    let mut open = needs.may_do_more();
    let mut fit = |texts: Vec<Option<String>>| -> Vec<String> {
        let many = texts.len();
        let texts = texts.into_iter().flatten();
        let fitting = texts.filter(|text| text.len() <= TEXT).take(MOST_INTENDED);
        let fitting: Vec<String> = fitting.collect();
        open |= fitting.len() < many;
        fitting
    };
    let text = |path: &PathBuf| path.to_str().map(str::to_owned);
    let writes = fit(needs.writes.iter().map(text).collect());
    let reads = fit(needs.reads_and_enters().map(text).collect());
    let mut contacts: Vec<Contact> = needs.destinations.iter().map(contact).collect();
    contacts.retain(|contact| {
        let (Contact::Host(text) | Contact::Bundle(text) | Contact::Remote(text)) = contact;
        text.len() <= TEXT
    });
    open |= contacts.len() < needs.destinations.len() || contacts.len() > MOST_INTENDED;
    contacts.truncate(MOST_INTENDED);
    let mut tool = call.name.clone();
    cut(&mut tool, ID);
    let mut intent = Intent {
        // An id that is too long is none by which anything could be ended.
        id: call.id.clone().filter(|id| id.len() <= ID),
        tool,
        reads,
        writes,
        removes,
        contacts,
        open,
        shell,
        denied: None,
    };
    let is_long = |intent: &Intent| {
        let text = serde_json::to_vec(&Overheard::Call(intent.clone()));
        text.map_or(true, |text| text.len() > LONGEST)
    };
    while is_long(&intent) {
        intent.open = true;
        if intent.reads.pop().is_none()
            && intent.writes.pop().is_none()
            && intent.contacts.pop().is_none()
        {
            break;
        }
    }
    intent
}

/// Says that the rules for tools do not allow a call. What it needs is not told then, because nothing of it is to be opened.
fn deny(intent: &mut Intent, reason: ToolReason, mut rule: String) {
    let mut reason = Reason::from(reason);
    reason.cut(DENIAL);
    cut(&mut rule, DENIAL);
    intent.reads.clear();
    intent.writes.clear();
    intent.contacts.clear();
    intent.denied = Some(Box::new(DeniedCall { reason, rule }));
}

/// What of it would take the home or the workspace away, in a few names.
fn ruins(needs: &Needs, context: &Context) -> Vec<String> {
    let holds = |place: &Path, base: &Path| base.starts_with(place);
    let ruins = |removed: &&PathBuf| {
        let home = context.home.as_deref();
        match removed.file_name().is_some_and(|name| name == "*") {
            false => holds(removed, &context.cwd) || home.is_some_and(|home| holds(removed, home)),
            // In the workspace that is what a build does.
            true => removed.parent().is_some_and(|place| {
                let above = place != context.cwd && holds(place, &context.cwd);
                above || home.is_some_and(|home| holds(place, home))
            }),
        }
    };
    let ruined = needs.removes.iter().filter(ruins);
    let ruined = ruined.filter_map(|path| path.to_str().filter(|path| path.len() <= ANNOUNCED));
    ruined.take(MOST_RUINED).map(str::to_owned).collect()
}

fn contact(destination: &Destination) -> Contact {
    match destination {
        Destination::Host { .. } => Contact::Host(destination.to_string()),
        Destination::Bundle(name) => Contact::Bundle(name.clone()),
        Destination::Remote(name) => Contact::Remote(name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        reading_with(ToolPolicy::default())
    }

    fn reading_with(rules: ToolPolicy) -> Reading {
        let context = Context {
            cwd: "/project".into(),
            home: Some("/home/user".into()),
        };
        Reading::new(context, rules)
    }

    #[test]
    fn a_call_that_the_rules_for_tools_deny_is_told_without_its_needs() {
        let rules = serde_json::json!({"rules": {"tools": {"allow": ["Bash"], "arguments": [
            {"tool": "Bash", "arguments": {"command": {"matches": "cp [a-z./ ]*"}}},
        ]}}});
        let mut reading = reading_with(serde_json::from_value(rules).unwrap());
        let told = |reading: &mut Reading, command: &str| match fed(reading, &stream(command))
            .as_slice()
        {
            [Overheard::Call(intent)] => intent.clone(),
            told => panic!("{told:?}"),
        };
        let allowed = told(&mut reading, "cp a ../out/b");
        assert!(allowed.denied.is_none() && !allowed.writes.is_empty());
        let denied = told(&mut reading, "cp a ../out/b; curl x.test");
        assert!(denied.reads.is_empty() && denied.writes.is_empty());
        assert!(denied.contacts.is_empty());
        let why = denied.denied.unwrap();
        assert_eq!(why.reason.code(), Some("tool-argument"));
        assert_eq!(why.rule, "tools.arguments.Bash");
    }

    fn stream(command: &str) -> String {
        let input = serde_json::json!({ "command": command }).to_string();
        let events = [
            serde_json::json!({"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}}),
            serde_json::json!({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":input}}),
            serde_json::json!({"type":"content_block_stop","index":0}),
        ];
        events.map(|event| format!("data: {event}\n\n")).concat()
    }

    fn fed(reading: &mut Reading, text: &str) -> Vec<Overheard> {
        let mut told = reading.frame(Frame::Answer, 7, &[0, 1]);
        for byte in text.as_bytes() {
            told.extend(reading.frame(Frame::More, 7, &[*byte]));
        }
        told.extend(reading.frame(Frame::End, 7, &[]));
        told
    }

    #[test]
    fn a_call_in_a_stream_is_told_with_its_needs_and_its_result_once() {
        let mut reading = reading();
        let told = fed(
            &mut reading,
            &stream("cp a ../out/b && curl https://x.test/"),
        );
        let [Overheard::Call(intent)] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert_eq!(intent.id.as_deref(), Some("t1"));
        assert_eq!(intent.reads, ["/project/a"]);
        assert!(intent.writes.contains(&"/out/b".to_owned()), "{intent:?}");
        assert_eq!(intent.contacts, [Contact::Host("x.test:443".into())]);
        let request = br#"{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t0"},{"type":"tool_result","tool_use_id":"t1"}]}]}"#;
        for (number, expected) in [(8, 1), (9, 0)] {
            reading.frame(Frame::Request, number, &[0]);
            let told = reading.frame(Frame::More, number, request);
            assert_eq!(told.len(), expected);
            reading.frame(Frame::End, number, &[]);
        }
        assert!(reading.bodies.is_empty());
    }

    #[test]
    fn words_tell_what_they_name_and_are_no_calls_and_what_is_lost_tells_nothing() {
        let mut reading = reading();
        let words = |text: String| {
            let event = serde_json::json!({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":text}});
            format!("data: {event}\n\n")
        };
        assert!(fed(&mut reading, &words(stream("rm -rf /"))).is_empty());
        let announced = words("I copy it to `../out/b`, from https://x.test/a.".into());
        let told = fed(&mut reading, &(announced + &stream("cp a ../out/b")));
        let [Overheard::Words(named), Overheard::Call(_)] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert_eq!(named.paths, ["/out/b"]);
        assert_eq!(named.hosts, ["x.test"]);
        // However much is named, what is told of it is short.
        let many: Vec<String> = (0..500).map(|n| format!("/{n:0>250}")).collect();
        let told = fed(&mut reading, &words(many.join(" ")[..4000].to_owned()));
        assert!(!told.is_empty() && told.len() < 10, "{told:?}");
        for overheard in told {
            assert!(serde_json::to_vec(&overheard).unwrap().len() <= LONGEST);
        }
        reading.frame(Frame::Answer, 1, &[0, 1]);
        reading.frame(Frame::Lost, 1, &[]);
        let whole = stream("cat /etc/passwd");
        assert!(reading.frame(Frame::More, 1, whole.as_bytes()).is_empty());
    }

    #[test]
    fn what_takes_the_home_or_the_workspace_away_is_told() {
        let removes = |command: &str| {
            let told = fed(&mut reading(), &stream(command));
            let [Overheard::Call(intent)] = told.as_slice() else {
                panic!("{told:?}");
            };
            intent.removes.clone()
        };
        for (command, wanted) in [
            ("rm -rf ~", &["/home/user"][..]),
            ("rm -rf ~/*", &["/home/user"]),
            ("cd / && rm -fR home", &["/home"]),
            ("find ~ -mindepth 1 -delete", &["/home/user/*"]),
            ("find /home -exec rm -rf {} +", &["/home/*"]),
            ("rm -r ~/.[a-z]*", &["/home/user/*"]),
            ("rm -rf . && echo done", &["/project"]),
            // What builds and cleans do.
            ("rm -rf build ~/.cache/x ./a*", &[]),
            ("find . -name '*.pyc' -exec rm -rf {} +", &[]),
            ("rm ~/x /project/y", &[]),
        ] {
            assert_eq!(removes(command), wanted, "{command}");
        }
    }

    #[test]
    fn an_intent_fits_whatever_it_names() {
        let mut reading = reading();
        let many: Vec<String> = (0..2000).map(|n| format!("/data/{n:0>400}")).collect();
        let told = fed(&mut reading, &stream(&format!("cat {}", many.join(" "))));
        let [Overheard::Call(intent)] = told.as_slice() else {
            panic!("{} told", told.len());
        };
        assert!(intent.open && intent.reads.len() <= MOST_INTENDED);
        assert!(serde_json::to_vec(&told[0]).unwrap().len() <= LONGEST);
    }
}
