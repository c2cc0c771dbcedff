//! Names: those that the glossary replaced, types of one name, and numbers that the kernel names.

use crate::architecture::{top, tracked};
use std::collections::BTreeMap;

/// Words of the first version that the glossary replaced; no item has one in its name.
const REPLACED: &[&str] = &[
    "birthright",
    "clerk",
    "conductor",
    "door",
    "doorway",
    "foretold",
    "guardian",
    "inquiry",
    "keeper",
    "kin",
    "ladder",
    "ledger",
    "nursery",
    "opener",
    "rung",
    "stillness",
    "vault",
    "attend",
];

/// The same of two words.
const REPLACED_PAIRS: &[(&str, &str)] = &[("stand", "in"), ("stand", "ins")];

/// Names that say nothing of what they name; longer ones may contain them.
const BARE: &[&str] = &[
    "asked",
    "asking",
    "birth",
    "books",
    "born",
    "came",
    "dealing",
    "family",
    "farewell",
    "given",
    "ground",
    "grounds",
    "held",
    "kept",
    "maker",
    "means",
    "neighbours",
    "opened",
    "question",
    "questions",
    "record",
    "refusal",
    "said",
    "strangers",
    "told",
    "wanted",
    "weakened",
];

/// Types whose name says neither what they are nor of what; modules may have it.
const BARE_TYPES: &[&str] = &[
    "answer", "found", "from", "heard", "judged", "made", "seen", "standing", "trusted", "way",
    "ways",
];

/// Items that keep such a name: where, which, why.
const KEPT_NAMES: &[(&str, &str, &str)] = &[
    (
        "crates/model/src/event.rs",
        "DoorNarrowed",
        "an audit event",
    ),
    ("crates/model/src/event.rs", "DoorEnded", "an audit event"),
    ("crates/model/src/event.rs", "Question", "an audit event"),
    (
        "crates/control/src/message.rs",
        "Questions",
        "a request of the control socket",
    ),
    (
        "crates/egress/src/dns.rs",
        "Question",
        "the term of RFC 1035",
    ),
    (
        "crates/policy/src/questions.rs",
        "questions",
        "the policy's table",
    ),
    (
        "crates/policy/src/questions.rs",
        "Questions",
        "the policy's table",
    ),
    (
        "crates/policy/src/lib.rs",
        "questions",
        "the policy's table",
    ),
    (
        "crates/policy/src/fragment.rs",
        "questions",
        "the policy's table",
    ),
    (
        "crates/policy/src/fragment/questions.rs",
        "questions",
        "the policy's table",
    ),
];

/// The words of a name in any case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = '_';
    for letter in name.chars() {
        let begins =
            !previous.is_alphanumeric() || (letter.is_uppercase() && previous.is_lowercase());
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
        previous = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The name of the type or module that a line begins.
fn item(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(within) => within.split_once(") ")?.1,
            None => after.strip_prefix(' ')?,
        };
    }
    let (kind, rest) = rest.split_once(' ')?;
    let kinds = ["struct", "enum", "trait", "type", "union", "mod"];
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    (kinds.contains(&kind) && !name.is_empty()).then_some(name)
}

fn is_replaced(name: &str) -> bool {
    has_replaced_word(name) || is_bare(name)
}

fn has_replaced_word(name: &str) -> bool {
    let words = words(name);
    let pair = |pair: &[String]| REPLACED_PAIRS.contains(&(&pair[0], &pair[1]));
    words.iter().any(|word| REPLACED.contains(&word.as_str())) || words.windows(2).any(pair)
}

fn is_bare(name: &str) -> bool {
    let words = words(name);
    let is_type = name.starts_with(char::is_uppercase);
    let bare = |word: &str| BARE.contains(&word) || (is_type && BARE_TYPES.contains(&word));
    matches!(&words[..], [word] if bare(word))
}

/// The name of the function that a line begins, where it is not a test of behaviour in prose.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let code = !before.trim_start().starts_with("//") && !before.contains('"');
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    code.then_some(&rest[..end])
}

/// The names of the variants of the enums in a source file, as rustfmt lays them out.
fn variants(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if !line.starts_with(' ') {
            inside = line.contains("enum ") && line.ends_with('{') || inside && line.is_empty();
        } else if inside
            && let Some(rest) = line.strip_prefix("    ")
            && rest.starts_with(|letter: char| letter.is_ascii_uppercase())
        {
            let end = rest.find(|letter: char| !letter.is_alphanumeric());
            found.push(&rest[..end.unwrap_or(rest.len())]);
        }
    }
    found
}

/// A variant is read behind the name of its type, so that a bare word can be clear. A permission
/// request is never a question, however.
fn is_replaced_variant(name: &str) -> bool {
    has_replaced_word(name) || ["Question", "Questions"].contains(&name)
}

#[test]
fn no_type_module_or_file_has_a_name_that_the_glossary_replaced() {
    for (name, replaced) in [
        ("Keeper", true),
        ("DoorIds", true),
        ("as_door", true),
        ("Told", true),
        ("HeldBody", false),
        ("door_narrowed", true),
        ("Indoors", false),
        ("MountHelper", false),
        ("Seen", true),
        ("seen", false),
        ("AnswerReader", false),
    ] {
        assert_eq!(is_replaced(name), replaced, "{name}");
    }
    let mut wrong = Vec::new();
    let mut unused: Vec<_> = KEPT_NAMES.iter().collect();
    let mut seen = 0;
    for file in tracked(&["*.rs"]) {
        let place = file.strip_prefix(top()).expect("in the workspace");
        let place = place.to_str().expect("a name in text");
        let text = std::fs::read_to_string(&file).expect("a source file");
        let own = place.trim_end_matches(".rs").rsplit('/');
        let own = own.take(2).filter(|part| !part.contains('.'));
        let items = own.chain(text.lines().filter_map(item));
        let items = items.filter(|name| is_replaced(name));
        let functions = text.lines().filter_map(function);
        let functions = functions.filter(|name| has_replaced_word(name));
        let variants = variants(&text).into_iter();
        let variants = variants.filter(|name| is_replaced_variant(name));
        seen += text.lines().filter_map(item).count();
        for name in items.chain(functions).chain(variants) {
            let keeps = |kept: &&&(&str, &str, &str)| kept.0 == place && kept.1 == name;
            match KEPT_NAMES.iter().find(|kept| keeps(&kept)) {
                Some(kept) => unused.retain(|one| *one != kept),
                None => wrong.push(format!("{place}: {name}")),
            }
        }
    }
    assert!(seen > 2000, "only {seen} names were read");
    assert!(wrong.is_empty(), "see docs/glossary.md: {wrong:#?}");
    assert!(unused.is_empty(), "exceptions for nothing: {unused:#?}");
}

/// Files of the programs, without their tests: the part before the first module of tests.
fn program_sources() -> Vec<(String, String)> {
    let files = tracked(&["crates/*.rs", "backends/*.rs"]);
    let own = files.iter().filter_map(|file| {
        let place = file.strip_prefix(top()).expect("in the workspace");
        let place = place.to_str().expect("a name in text");
        let test = place.contains("/tests/") || place.ends_with("tests.rs");
        // A build script is another program.
        if test || place.contains("/build") {
            return None;
        }
        let text = std::fs::read_to_string(file).expect("a source file");
        let end = text.find("\n#[cfg(test)]").unwrap_or(text.len());
        Some((place.to_owned(), text[..end].to_owned()))
    });
    own.collect()
}

/// Types that have one name in several modules of a crate: which crate, which name, why.
const SHARED_IN_CRATE: &[(&str, &str, &str)] = &[
    ("crates/inside", "Args", "each command has its own"),
    (
        "crates/vmm",
        "Client",
        "the client itself, and the monitor's side of one",
    ),
    (
        "crates/mcp",
        "Entry",
        "of a catalog, and of a client's configuration",
    ),
    (
        "crates/serve",
        "Gone",
        "tells that a stream's reader left, in each API",
    ),
    ("crates/oci-runtime", "Request", "of create and of exec"),
    ("crates/serve", "SendSignal", "each API has its own JSON"),
    (
        "crates/serve",
        "Shared",
        "the state that the handlers of each API share",
    ),
    ("crates/reader", "Value", "each language has its own"),
    ("crates/cli", "Args", "each command has its own"),
    (
        "crates/cli",
        "Command",
        "each group of commands has its own",
    ),
    ("crates/command", "Args", "each command has its own"),
    ("crates/command", "Action", "the subcommands of a command"),
    ("crates/bench", "ArmReport", "each bench has its own JSON"),
];

/// Types that have one compound name in several crates: which, why.
const SHARED_BY_CRATES: &[(&str, &str)] = &[
    (
        "RunError",
        "of a cage in the supervisor, of a probe in the lab, of a WebAssembly command: three programs",
    ),
    (
        "FrameError",
        "of the control socket and of a guest's channel: two protocols",
    ),
    ("KillOnDrop", "in two programs"),
    ("NetworkMode", "of a policy, and the service's JSON"),
    ("NetworkRule", "of a plan, and the service's JSON"),
    (
        "PendingChange",
        "of the command line, and the service's JSON",
    ),
    (
        "PermissionRequest",
        "the request, and the service's JSON of it",
    ),
    ("RootFs", "of an image's configuration, and of a container"),
    ("RuleSet", "of Cedar, and of tool calls"),
    ("RunCommand", "of the command line, and the service's JSON"),
    ("SetupError", "of a guest, and of a host"),
    ("StartProcess", "of the daemon, and the service's JSON"),
    ("SyscallRule", "of a list, and of config.json"),
    ("TerminalSize", "of the daemon, and of a guest"),
    ("WorkspaceMode", "of a policy, and the service's JSON"),
];

#[test]
fn no_two_types_have_one_name() {
    let mut by_crate: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (place, text) in program_sources() {
        let room: Vec<&str> = place.splitn(3, '/').take(2).collect();
        for name in text
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter_map(item)
        {
            if name.starts_with(char::is_uppercase) {
                let key = (name.to_owned(), room.join("/"));
                by_crate.entry(key).or_default().push(place.clone());
            }
        }
    }
    assert!(by_crate.len() > 1000, "only {} types", by_crate.len());
    let mut wrong = Vec::new();
    let mut unused: Vec<String> = (SHARED_IN_CRATE.iter())
        .map(|(room, name, _)| format!("{room} {name}"))
        .chain(SHARED_BY_CRATES.iter().map(|(name, _)| (*name).to_owned()))
        .collect();
    let mut allowed =
        |exception: String, found: String| match unused.iter().position(|one| *one == exception) {
            Some(index) => drop(unused.swap_remove(index)),
            None => wrong.push(found),
        };
    let mut across: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for ((name, room), places) in &by_crate {
        across.entry(name).or_default().push(room);
        if places.len() > 1 {
            allowed(format!("{room} {name}"), format!("{name}: {places:?}"));
        }
    }
    for (name, rooms) in across {
        // A name of one word is read with its module: `plan::Network`, `policy::Network`.
        if rooms.len() > 1 && words(name).len() > 1 {
            allowed(name.clone(), format!("{name}: {rooms:?}"));
        }
    }
    assert!(wrong.is_empty(), "rename one of each: {wrong:#?}");
    assert!(unused.is_empty(), "exceptions for nothing: {unused:?}");
}

/// Prefixes of what the kernel's headers name.
const KERNEL_PREFIXES: &[&str] = &[
    "AF_",
    "AT_EMPTY",
    "AT_FDCWD",
    "AT_SYMLINK",
    "CLONE_",
    "EPOLL",
    "IPPROTO_",
    "MOUNT_ATTR_",
    "MS_",
    "NLM_",
    "NLA_",
    "O_",
    "OPEN_TREE_",
    "PR_",
    "PTRACE_",
    "RTM_",
    "SIG",
    "SO_",
    "SOCK_",
    "SOL_",
    "SYS_",
    "TIOC",
    "CLOSE_RANGE_",
    "SECCOMP_",
    "MAP_",
    "PROT_",
    "RLIMIT_",
];

/// Such numbers that are written by hand: where, which, why.
const BY_HAND: &[(&str, &str, &str)] = &[
    (
        "crates/images/src/config.rs",
        "SIGRTMIN",
        "the C library's number, which image configurations mean",
    ),
    (
        "crates/oci-runtime/src/cgroup/mod.rs",
        "SIGKILL",
        "what cgroup.kill sends",
    ),
    (
        "crates/probe/src/stage/key_agent.rs",
        "SIGN",
        "a message of the ssh-agent's protocol",
    ),
    (
        "crates/probe/src/stage/key_agent.rs",
        "SIGNED",
        "a message of the ssh-agent's protocol",
    ),
];

/// The name of a constant that stands for a number written as such.
fn number_by_hand(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("const ")?;
    let (name, rest) = rest.split_once(": ")?;
    let (_, value) = rest.split_once(" = ")?;
    let digits = value.trim_start_matches('-');
    digits
        .starts_with(|letter: char| letter.is_ascii_digit())
        .then_some(name)
}

#[test]
fn numbers_that_the_kernel_names_come_from_libc_rustix_or_linux_raw_sys() {
    assert_eq!(
        number_by_hand("    const PR_SCHED_CORE: i32 = 62;"),
        Some("PR_SCHED_CORE")
    );
    assert_eq!(number_by_hand("const AF_ALG: i32 = libc::AF_ALG;"), None);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (place, text) in program_sources() {
        for name in text.lines().filter_map(number_by_hand) {
            seen += 1;
            let kernels = KERNEL_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix));
            let excused = BY_HAND
                .iter()
                .any(|(file, known, _)| *file == place && *known == name);
            if kernels && !excused {
                wrong.push(format!("{place}: {name}"));
            }
        }
    }
    assert!(seen > 200, "only {seen} numbers were read");
    assert!(wrong.is_empty(), "take it from a crate: {wrong:#?}");
}
