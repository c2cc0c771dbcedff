//! Console sessions in Markdown pages: what stands behind `$` is typed, what follows is what it prints.
//!
//! A page is one session: its blocks are played in their order, in one shell, by the user of a [`Stage`] who has
//! nothing but an empty home. Only what a page shows is done. What differs from run to run (ids, times, the home's
//! path, the build's commit) is compared by its form; a line `...` stands for any lines.

use crate::{Running, Stage, binary};
use std::time::Duration;

/// The home directory in the pages.
const HOME: &str = "/home/you";
/// Between the outputs of two commands.
const MARK: &str = "\u{1}next\u{1}";
/// A whole session.
const DEADLINE: Duration = Duration::from_secs(300);

/// One command of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The line of the page on which it stands, from 1.
    pub line: usize,
    /// What is typed.
    pub command: String,
    /// What the page says that it prints.
    pub output: String,
}

/// The steps of a page's `console` blocks.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = None;
    for (line, text) in (1..).zip(page.lines()) {
        if let Some(kind) = text.strip_prefix("```") {
            inside = match inside {
                None => Some(kind.trim()),
                Some(_) => None,
            };
            continue;
        }
        if inside != Some("console") {
            continue;
        }
        match (text.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step {
                line,
                command: command.to_owned(),
                output: String::new(),
            }),
            (None, Some(step)) => match text.strip_prefix("> ") {
                Some(more) if step.output.is_empty() => {
                    step.command.push('\n');
                    step.command.push_str(more);
                }
                _ => {
                    step.output.push_str(text);
                    step.output.push('\n');
                }
            },
            (None, None) => panic!("line {line}: output before the first command"),
        }
    }
    steps
}

/// Types the commands one after the other in one shell; returns what each printed, in order.
///
/// # Panics
/// When the session does not come to its end.
pub fn play(stage: &Stage, steps: &[Step]) -> Vec<String> {
    // A page makes its own project.
    std::fs::remove_dir(stage.project()).expect("an empty project");
    let directory = binary().parent().expect("the binary's directory").display();
    let mut script = String::from("exec 2>&1\n");
    for step in steps {
        script.push_str(&step.command);
        // The status is the next command's to ask for.
        script.push_str(&format!("\nstatus=$?; printf '{MARK}'; (exit $status)\n"));
    }
    let mut shell = stage.outside("/bin/bash");
    // A page shows what a person sees.
    shell.env_remove("IRONCAGE_ERROR_CODES");
    shell
        .args(["-c", &script])
        .current_dir(stage.home())
        .env(
            "PATH",
            format!("{directory}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"),
        )
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(std::process::Stdio::null());
    let ran = Running::start(&mut shell).finish(DEADLINE);
    let home = stage.home();
    let text = ran
        .stdout()
        .replace(home.to_str().expect("a home in text"), HOME);
    let mut parts: Vec<String> = text.split(MARK).map(ToOwned::to_owned).collect();
    let rest = parts.pop();
    assert!(
        parts.len() == steps.len() && rest.as_deref() == Some(""),
        "the session ended early: {ran:?}"
    );
    parts
}

/// Whether an output is what a page says, by words: where lines break depends on the length of paths.
pub fn agrees(said: &str, printed: &str) -> bool {
    let printed = words(printed);
    let mut at = 0;
    let parts: Vec<Vec<String>> = said
        .split("\n...\n")
        .flat_map(|part| {
            part.strip_prefix("...\n")
                .map_or(vec![part], |rest| vec!["", rest])
        })
        .map(|part| words(part.strip_suffix("...").unwrap_or(part)))
        .collect();
    let open_end = said.trim_end().ends_with("\n...") || said.trim_end() == "...";
    for (number, part) in parts.iter().enumerate() {
        let rest = &printed[at..];
        let found = match number {
            0 => rest.starts_with(part).then_some(0),
            _ if part.is_empty() => Some(0),
            _ => rest
                .windows(part.len())
                .position(|window| window == &part[..]),
        };
        match found {
            Some(skipped) => at += skipped + part.len(),
            None => return false,
        }
    }
    at == printed.len()
        || open_end
        || parts
            .last()
            .is_some_and(|last| parts.len() > 1 && last.is_empty())
}

/// The words of a text, with what differs from run to run replaced by its form.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = text.split_whitespace().map(form).collect();
    // A build: version, commit, target, kind.
    while let Some(open) = words.iter().position(|word| word.starts_with("(COMMIT")) {
        let close = words[open..].iter().position(|word| word.ends_with(')'));
        let end = close.map_or(words.len(), |length| open + length + 1);
        words.splice(open..end, ["(BUILD)".to_owned()]);
    }
    // How long a cage has been running.
    for at in 1..words.len() {
        let age = words[at].strip_suffix(['s', 'm', 'h', 'd']);
        if words[at - 1] == "running" && age.is_some_and(|age| age.parse::<u32>().is_ok()) {
            words[at] = "AGE".to_owned();
        }
    }
    words
}

fn form(word: &str) -> String {
    let mut text = String::new();
    let mut piece = String::new();
    for c in word.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() {
            piece.push(c);
            continue;
        }
        text.push_str(&form_of_piece(&piece));
        piece.clear();
        if c != ' ' {
            text.push(c);
        }
    }
    if word.starts_with('(') && (text.starts_with("(HEX") || text.starts_with("(unknown")) {
        return "(COMMIT,".to_owned();
    }
    // A date, a time, a duration.
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let is_time = text.len() == 10 && text.matches('-').count() == 2 && digits(&text) == 8
        || text.matches(':').count() == 2 && digits(&text) >= 6;
    let is_duration = text.split_once('.').is_some_and(|(whole, part)| {
        part.len() == 3 && digits(whole) == whole.len() && digits(part) == 3
    });
    match (is_time, is_duration) {
        (true, _) => "TIME".to_owned(),
        (_, true) => "DURATION".to_owned(),
        _ => text,
    }
}

/// Ids of cages and of changes, and digests. Ids have digits and the letters that are not taken for them.
fn form_of_piece(piece: &str) -> String {
    let in_id = |c: char| c.is_ascii_digit() || (c.is_ascii_lowercase() && !"ilou".contains(c));
    let is_id = piece.chars().all(in_id);
    if is_id && piece.len() == 13 && piece.starts_with('c') {
        return "CAGE".to_owned();
    }
    if is_id && piece.len() == 9 && piece.starts_with('w') {
        return "CHANGE".to_owned();
    }
    let hex = piece
        .chars()
        .all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
    if piece.len() >= 12 && hex {
        return "HEX".to_owned();
    }
    piece.to_owned()
}

/// The page with what its commands printed in the place of what it says.
pub fn renewed(page: &str, steps: &[Step], printed: &[String]) -> String {
    let mut text = String::new();
    let mut lines = (1..).zip(page.lines()).peekable();
    while let Some((line, content)) = lines.next() {
        text.push_str(content);
        text.push('\n');
        let Some(at) = steps.iter().position(|step| step.line == line) else {
            continue;
        };
        while let Some((_, more)) = lines.next_if(|(_, text)| text.starts_with("> ")) {
            text.push_str(more);
            text.push('\n');
        }
        while lines
            .next_if(|(_, text)| !text.starts_with("$ ") && !text.starts_with("```"))
            .is_some()
        {}
        let step = &steps[at];
        let output = if agrees(&step.output, &printed[at]) {
            &step.output
        } else {
            &printed[at]
        };
        text.push_str(output);
        if !output.is_empty() && !output.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}
