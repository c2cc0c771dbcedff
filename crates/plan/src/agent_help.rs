//! How an agent learns that it is in a cage and how it asks for more: files where agents look for
//! instructions of the machine, and a variable for all others.

use ironcage_policy::Policy;

/// The variable that names the file.
pub(crate) const VARIABLE: &str = "IRONCAGE_HELP";
/// The file that it names.
pub(crate) const FILE: &str = "/etc/ironcage/AGENTS.md";
const WHY: &str = "tells the agent how to request permissions";

/// The files, each with its origin. None where the policy has no ceiling: nothing can be requested.
pub(crate) fn files(policy: &Policy) -> Vec<(&'static str, String, &'static str)> {
    if !policy.ceiling.is_given() {
        return Vec::new();
    }
    let text = text();
    vec![
        (FILE, text.clone(), WHY),
        // Claude Code adds it to every session, before the user's and the project's.
        ("/etc/claude-code/CLAUDE.md", text.clone(), WHY),
        // The lowest layer of Codex's settings: the user's own win.
        (
            "/etc/codex/config.toml",
            format!("developer_instructions = \"\"\"\n{text}\"\"\"\n"),
            WHY,
        ),
    ]
}

fn text() -> String {
    "# You run in an Ironcage sandbox\n\
     \n\
     A file that exists on the host can be absent here, and a host unreachable, because the policy\n\
     hides it: \"No such file\", \"Permission denied\", HTTP 403 or a name that does not resolve is not\n\
     always the truth about the host. Do not work around it. Request what you need:\n\
     \n\
     - `/.ironcage/bin/ironcage ask --read PATH --reason 'WHY' --wait 120`\n\
     - `/.ironcage/bin/ironcage ask --write PATH --reason 'WHY' --wait 120`\n\
     - `/.ironcage/bin/ironcage ask --host NAME --reason 'WHY' --wait 120`\n\
     \n\
     Exit status: 0 granted, 1 denied (go on without it), 2 the user has not answered yet.\n\
     A denial ends with a code in brackets; `/.ironcage/bin/ironcage ask --help` explains more.\n"
        .to_owned()
}
