//! Which files with sensitive names are hidden in a workspace that an agent filled with names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{NodeType, Privilege};
use ironcage_plan::{Detail, HiddenBy, ViewOp, explain, make};
use ironcage_policy::FlagLayer;
use made_up::{Tree, host, policy_of, request};

/// The files that a plan hides by their names, and whether some were left out.
fn hidden(files: &Tree) -> (Vec<String>, bool) {
    let host = host(Privilege::User);
    let policy = policy_of("coding-agent", FlagLayer::default());
    let plan = make(&policy, &request(), &host, files).unwrap();
    let sensitive = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Hide {
            target,
            by: HiddenBy::Sensitive,
            ..
        } => Some(target.display().to_string()),
        _ => None,
    });
    let text = explain(&plan, Detail::Full);
    (sensitive.collect(), text.contains("were not looked at"))
}

#[test]
fn junk_beside_a_file_does_not_keep_it_from_being_hidden() {
    let project = |name: &str| format!("/home/ann/project/{name}");
    let mut files = Tree::new();
    for name in ["credentials.json", "src/.env", "src/deep/.env"] {
        files.add(&project(name), NodeType::File);
    }
    files.add(&project("src/deep"), NodeType::Directory);
    let all = ["credentials.json", "src/.env", "src/deep/.env"].map(project);
    assert_eq!(hidden(&files), (all.to_vec(), false));
    // In the same directory, before it in the listing: one more than are looked at.
    for number in 0..4_001 {
        files.add(&project(&format!("src/.a{number}")), NodeType::File);
    }
    // What lies deeper is said not to have been looked at.
    assert_eq!(hidden(&files), (all[..2].to_vec(), true));
}
