//! The login of an agent that its user has and its cage does not: the agent would only say that
//! nobody is logged in.

use ironcage_model::{HostRule, Printable};
use ironcage_plan::Request;
use ironcage_policy::{Policy, keys, logins};
use std::path::Path;

/// Names the flag by which the egress proxy uses the login of the agent that starts, where the
/// agent will look for one in vain.
pub(crate) fn note(policy: &Policy, request: &Request) -> Option<String> {
    let program = Path::new(request.argv.first()?).file_name()?.to_str()?;
    let login = logins::find(program)?;
    let outside = request.home.join(login.file);
    let holds = |path: &Path| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.len() > 0)
    };
    // One that was made in a cage of this workspace, or imported, is kept. Where `--login` was used,
    // an empty file is left.
    let has_own = holds(&request.kept.home.join(login.file));
    if !holds(&outside) || has_own || has_credential(policy, login) {
        return None;
    }
    Some(format!(
        "your login in {} is not in the cage; --login {program} lets the egress proxy use it",
        Printable::new(&outside)
    ))
}

/// Whether the policy gives the agent a login or a key for the same hosts.
fn has_credential(policy: &Policy, login: &logins::Login) -> bool {
    let network = &policy.network;
    let mut used = network.logins.iter();
    let for_it = |rule: &HostRule| login.hosts.iter().any(|host| rule.to.is_name(host));
    let mut secrets = network.secrets.iter();
    // A key, or a base URL, that the cage gets as it is.
    let passed = |name: &str| policy.env.iter().any(|rule| rule.value.name() == name);
    let mut known = keys::ENTRIES.iter();
    used.any(|used| used.value.name == login.name)
        || secrets.any(|secret| secret.value.hosts.iter().any(for_it))
        || known.any(|key| {
            let of_vendor = key.hosts.iter().any(|host| login.hosts.contains(host));
            of_vendor && (passed(key.variable) || key.base_url.is_some_and(passed))
        })
}
