//! One parser under libFuzzer, chosen by the variable IRONCAGE_FUZZ; `scripts/fuzz` runs them.
#![no_main]

use ironcage_control::{Reply, Request, Said, frame};
use ironcage_intent::{Answer, Encoding, Format, results};
use std::path::Path;
use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 9] = [
    ("dns-question", ironcage_egress::fuzz::dns_question),
    ("dns-answer", ironcage_egress::fuzz::dns_answer),
    ("tls-hello", ironcage_egress::fuzz::tls_hello),
    ("http-head", ironcage_egress::fuzz::http_head),
    ("names-and-rules", names_and_rules),
    ("control-frame", control_frame),
    ("inquiry", inquiry),
    ("model-answer", model_answer),
    ("policy", policy),
];

/// Names, rules over hosts, requests and secrets: what is read once is read the same again.
fn names_and_rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(name) = ironcage_policy::host_name(text) {
        let again = ironcage_policy::host_name(&name.to_string());
        assert_eq!(again.as_ref().ok(), Some(&name), "{text:?}");
    }
    if let Ok(rule) = ironcage_policy::allowed(text) {
        let written = rule.to_string();
        let again = ironcage_policy::allowed(&written);
        assert_eq!(again.as_ref().ok(), Some(&rule), "{text:?} {written:?}");
    }
    let _ = ironcage_policy::denied(text);
    let _ = ironcage_policy::requests(text);
    let _ = ironcage_policy::secret(text);
}

fn control_frame(bytes: &[u8]) {
    if let Ok((_, body)) = frame::split(bytes) {
        let _ = frame::parse::<Request>(body);
        let _ = frame::parse::<Reply>(body);
    }
}

/// A line of somebody in the cage who asks for something.
fn inquiry(bytes: &[u8]) {
    match Said::read(bytes) {
        Ok(Said::Asks(inquiry)) => drop(inquiry.what.resource().map(|what| what.to_string())),
        Ok(Said::Runs(shell)) => assert!(shell.reads.iter().all(|path| path.is_absolute())),
        Err(error) => assert!(!error.to_string().contains(char::is_control)),
    }
}

/// An answer of a model, in pieces of a size that the input chooses.
fn model_answer(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let formats = [Format::Events, Format::Document];
    let encodings = [Encoding::Identity, Encoding::Gzip, Encoding::Deflate];
    let format = formats[usize::from(first & 1)];
    let encoding = encodings[usize::from((first >> 1) & 3) % 3];
    let mut answer = Answer::new(format, encoding);
    for piece in rest.chunks(usize::from(first >> 3) + 1) {
        let _ = answer.feed(piece);
    }
    let _ = answer.end();
    let _ = results(rest);
}

fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = ironcage_policy::parse(Path::new("ironcage.toml"), text) {
        let _ = error.to_string();
    }
}

fn chosen() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var("IRONCAGE_FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        let Some((_, target)) = found else {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("IRONCAGE_FUZZ is to be one of {}", names.join(", "));
            std::process::exit(2);
        };
        *target
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| chosen()(data));
