//! Settings of a repository: what an agent added that runs nothing, and what it is kept from.

use ironcage_model::Printable;

/// One setting: section and key in lower case, the subsection as it is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    pub(crate) section: String,
    pub(crate) subsection: Option<String>,
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

impl Setting {
    /// The name as git tells it.
    pub(crate) fn name(&self) -> String {
        let parts = [
            Some(&self.section),
            self.subsection.as_ref(),
            Some(&self.key),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        Printable::new(&parts.join(".")).to_string()
    }

    fn same_place(&self, other: &Setting) -> bool {
        (&self.section, &self.subsection, &self.key)
            == (&other.section, &other.subsection, &other.key)
    }
}

/// What differs between two configurations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigChange {
    /// New, and harmless: they are taken over.
    pub(crate) taken: Vec<Setting>,
    /// What stays aside, by name.
    pub(crate) withheld: Vec<String>,
}

/// Compares the agent's configuration with the real one, which has some branches. `None` when the
/// agent's is not one.
pub(crate) fn compare(
    real: &str,
    agents: &str,
    is_branch: &dyn Fn(&str) -> bool,
) -> Option<ConfigChange> {
    let (real, agents) = (parse(real).unwrap_or_default(), parse(agents)?);
    let mut change = ConfigChange::default();
    // The user's next push of a branch that is there would go to whom the agent chose.
    let is_remote = |name: &str| {
        let mut remotes = real.iter().filter(|setting| setting.section == "remote");
        name == "." || remotes.any(|setting| setting.subsection.as_deref() == Some(name))
    };
    let turned: Vec<Option<&str>> = agents
        .iter()
        .filter(|setting| setting.section == "branch" && setting.key == "remote")
        .filter(|setting| !real.contains(setting))
        .filter(|setting| !is_remote(setting.value.as_deref().unwrap_or_default()))
        .map(|setting| setting.subsection.as_deref())
        .filter(|branch| branch.is_some_and(is_branch))
        .collect();
    let is_turned = |setting: &Setting| {
        setting.section == "branch" && turned.contains(&setting.subsection.as_deref())
    };
    for setting in &agents {
        if real.contains(setting) {
            continue;
        }
        let is_new = !real.iter().any(|other| other.same_place(setting));
        if is_new && is_harmless(setting) && !is_turned(setting) {
            change.taken.push(setting.clone());
        } else {
            change.withheld.push(setting.name());
        }
    }
    Some(change)
}

/// What is said of settings that are taken over; nothing where there are none.
pub(crate) fn told(taken: &[Setting]) -> Option<String> {
    let told: Vec<String> = taken
        .iter()
        .map(|setting| {
            let value = Printable::new(setting.value.as_deref().unwrap_or_default()).to_string();
            format!("{} = {value}", setting.name())
        })
        .collect();
    (!told.is_empty()).then(|| format!("says where git fetches and pushes: {}", told.join(", ")))
}

/// Whether a setting names a branch's upstream or a remote by an address that runs nothing.
fn is_harmless(setting: &Setting) -> bool {
    let (Some(subsection), Some(value)) = (&setting.subsection, &setting.value) else {
        return false;
    };
    let plain = |text: &str| {
        !text.is_empty() && !text.contains(|c: char| c.is_control()) && !text.starts_with('-')
    };
    if !plain(subsection) || !plain(value) {
        return false;
    }
    match (setting.section.as_str(), setting.key.as_str()) {
        ("branch", "remote") => !value.contains(':') && !value.contains('/'),
        ("branch", "merge") => value.starts_with("refs/"),
        ("branch", "rebase") => matches!(value.as_str(), "true" | "false" | "merges"),
        ("remote", "url") => is_plain_address(value),
        // Into the remote's own names: another target would move branches of the user's.
        ("remote", "fetch") => {
            value
                .trim_start_matches('+')
                .split_once(':')
                .is_some_and(|(from, to)| {
                    from.starts_with("refs/")
                        && to.starts_with(&format!("refs/remotes/{subsection}/"))
                })
        }
        _ => false,
    }
}

/// An address without a helper: `ext::` and its like run programs, and a path on this host leads
/// to a repository of whoever made it.
fn is_plain_address(address: &str) -> bool {
    if address.contains("::") {
        return false;
    }
    let schemes = ["https://", "http://", "ssh://", "git://"];
    if let Some(rest) = schemes
        .iter()
        .find_map(|scheme| address.strip_prefix(scheme))
    {
        return !rest.starts_with('-');
    }
    // host:path, as ssh has it.
    match address.split_once(':') {
        Some((host, path)) => !host.is_empty() && !host.contains('/') && !path.is_empty(),
        None => false,
    }
}

/// The text that adds settings to a configuration.
pub(crate) fn addition(settings: &[Setting]) -> String {
    let mut text = String::new();
    for setting in settings {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let subsection = quoted(setting.subsection.as_deref().unwrap_or_default());
        let value = quoted(setting.value.as_deref().unwrap_or_default());
        text.push_str(&format!(
            "[{} \"{subsection}\"]\n\t{} = \"{value}\"\n",
            setting.section, setting.key
        ));
    }
    text
}

/// Reads a configuration; `None` where git would not take it either.
pub(crate) fn parse(text: &str) -> Option<Vec<Setting>> {
    lines(text).into_iter().collect()
}

/// Reads what can be understood of a configuration: one of the user's, of which no line may be
/// missed because of another.
pub(crate) fn parse_lenient(text: &str) -> Vec<Setting> {
    lines(text).into_iter().flatten().collect()
}

/// The setting of each line that has one, `None` for a line that cannot be understood.
fn lines(text: &str) -> Vec<Option<Setting>> {
    let mut settings = Vec::new();
    let mut section: Option<(String, Option<String>)> = None;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let joined = text.replace("\r\n", "\n").replace("\\\n", "");
    for line in joined.lines() {
        let mut rest = line.trim();
        if let Some(header) = rest.strip_prefix('[') {
            let Some((parsed, after)) = parse_header(header) else {
                settings.push(None);
                continue;
            };
            section = Some(parsed);
            rest = after.trim();
        }
        if rest.is_empty() || rest.starts_with(['#', ';']) {
            continue;
        }
        settings.push(parse_setting(section.as_ref(), rest));
    }
    settings
}

fn parse_setting(section: Option<&(String, Option<String>)>, text: &str) -> Option<Setting> {
    let (name, subsection) = section?;
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key.trim(), Some(parse_value(value.trim())?)),
        None => (text.split(['#', ';']).next().unwrap_or(text).trim(), None),
    };
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return None;
    }
    Some(Setting {
        section: name.clone(),
        subsection: subsection.clone(),
        key: key.to_ascii_lowercase(),
        value,
    })
}

/// What is in the brackets, and what follows them.
fn parse_header(text: &str) -> Option<((String, Option<String>), &str)> {
    let end = text.find([']', '"', ' ', '\t'])?;
    let name = &text[..end];
    if text[end..].starts_with(']') {
        let after = &text[end + 1..];
        // The old form: the subsection after a dot, without regard to case.
        return Some(match name.split_once('.') {
            Some((name, below)) => (
                (name.to_ascii_lowercase(), Some(below.to_ascii_lowercase())),
                after,
            ),
            None => ((name.to_ascii_lowercase(), None), after),
        });
    }
    let quoted = text[end..].trim_start().strip_prefix('"')?;
    let mut subsection = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => subsection.push(characters.next()?.1),
            '"' => {
                let after = quoted[at + 1..].strip_prefix(']')?;
                return Some(((name.to_ascii_lowercase(), Some(subsection)), after));
            }
            character => subsection.push(character),
        }
    }
    None
}

fn parse_value(text: &str) -> Option<String> {
    let mut value = String::new();
    let mut kept = 0;
    let mut quoted = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '#' | ';' if !quoted => break,
            '\\' => match characters.next()? {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'b' => value.push('\u{8}'),
                escaped @ ('"' | '\\') => value.push(escaped),
                _ => return None,
            },
            character => value.push(character),
        }
        if quoted || !character.is_whitespace() {
            kept = value.len();
        }
    }
    value.truncate(kept);
    (!quoted).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: &str = "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = https://host/x.git\n";

    fn change(added: &str) -> ConfigChange {
        compare(REAL, &format!("{REAL}{added}"), &|branch| branch == "main")
            .expect("a configuration")
    }

    #[test]
    fn a_branch_that_is_there_is_not_turned_to_a_remote_of_the_agents() {
        let remote = "[remote \"up\"]\n\turl = https://elsewhere/x.git\n";
        let branch = |name: &str, remote: &str| {
            format!("[branch \"{name}\"]\n\tremote = {remote}\n\tmerge = refs/heads/x\n")
        };
        let turned = change(&format!("{remote}{}", branch("main", "up")));
        assert_eq!(turned.withheld, ["branch.main.remote", "branch.main.merge"]);
        let told = told(&turned.taken).expect("it is told");
        assert!(told.contains("remote.up.url = https://elsewhere/x.git"));
        for (name, to) in [("main", "origin"), ("topic", "up")] {
            let fine = change(&format!("{remote}{}", branch(name, to)));
            assert!(fine.withheld.is_empty(), "{name} {to}");
            assert_eq!(fine.taken.len(), 3);
        }
    }

    #[test]
    fn upstreams_and_plain_remotes_are_taken_over() {
        let change = change(
            "[branch \"topic/x\"]\n\tremote = origin\n\tmerge = refs/heads/topic/x\n[remote \"fork\"]\n\turl = git@host:fork.git\n\tfetch = +refs/heads/*:refs/remotes/fork/*\n",
        );
        assert_eq!(change.withheld, Vec::<String>::new());
        assert_eq!(change.taken.len(), 4);
        let text = addition(&change.taken);
        assert_eq!(parse(&text).expect("it can be read"), change.taken);
    }

    #[test]
    fn what_runs_programs_or_leads_elsewhere_is_withheld() {
        for (added, name) in [
            ("[core]\n\tfsmonitor = evil\n", "core.fsmonitor"),
            ("[core]\n\thooksPath = x\n", "core.hookspath"),
            ("[core] sshCommand = x\n", "core.sshcommand"),
            ("[alias]\n\tst = !evil\n", "alias.st"),
            ("[include]\n\tpath = x\n", "include.path"),
            ("[filter \"x\"]\n\tclean = evil\n", "filter.x.clean"),
            ("[diff]\n\texternal = evil\n", "diff.external"),
            ("[diff.x]\n\ttextconv = evil\n", "diff.x.textconv"),
            ("[remote \"x\"]\n\turl = ext::sh -c evil\n", "remote.x.url"),
            ("[remote \"x\"]\n\turl = /tmp/evil\n", "remote.x.url"),
            (
                "[remote \"x\"]\n\turl = ssh://-oProxyCommand=evil/x\n",
                "remote.x.url",
            ),
            ("[remote \"x\"]\n\tvcs = evil\n", "remote.x.vcs"),
            (
                "[remote \"x\"]\n\tfetch = +refs/heads/*:refs/heads/*\n",
                "remote.x.fetch",
            ),
            (
                "[remote \"origin\"]\n\turl = https://evil/x\n",
                "remote.origin.url",
            ),
            ("[branch \"x\"]\n\tremote = ext::evil\n", "branch.x.remote"),
            ("[core]\n\tfs\\\nmonitor = evil\n", "core.fsmonitor"),
            ("[core \"\"]\n\tfsmonitor = evil\n", "core..fsmonitor"),
            ("[core]\n\tbare\n", "core.bare"),
        ] {
            let change = change(added);
            assert_eq!(change.taken, [], "{added}");
            assert_eq!(change.withheld, [name], "{added}");
        }
        assert_eq!(compare(REAL, "[core\n", &|_| false), None);
    }
}
