//! One suite for every backend: the same cases, as root and as the unprivileged user.
//!
//! A case that a backend cannot meet stands in `EXCEPTIONS` with its reason, and is run all the same: when it holds
//! after all, the list is wrong and the test fails.

#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/isolation.rs"]
mod isolation;
#[path = "conformance/scene.rs"]
mod scene;

use cases::CASES;
use ironcage_tests::{
    DIRECT, Exit, Running, Who, binary, copy_program, only_in_full, processes_with, tree,
    wait_until,
};
use isolation::{EXCEPTIONS, IsolationLevel};
use scene::{MINUTE, Scene, marker};

fn conforms(who: Who, level: IsolationLevel) {
    let mut wrong = Vec::new();
    for (name, case) in CASES {
        let Some(scene) = Scene::new(who, level) else {
            return;
        };
        let exception = EXCEPTIONS
            .iter()
            .find(|(of, what, _)| *of == level && what == name);
        match (case(&scene), exception) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Err(found), None) => wrong.push(format!("{name}: {found}")),
            (Ok(()), Some((_, _, why))) => {
                wrong.push(format!("{name}: listed as an exception ({why}), and holds"));
            }
        }
    }
    assert!(wrong.is_empty(), "{level:?}: {wrong:#?}");
}

macro_rules! isolation_levels {
    ($($name:ident: $level:ident),* $(,)?) => {$(
        mod $name {
            use super::*;

            #[test]
            fn as_root() {
                conforms(Who::Root, IsolationLevel::$level);
            }

            #[test]
            fn as_user() {
                conforms(Who::User, IsolationLevel::$level);
            }
        }
    )*};
}

isolation_levels! {
    namespace: Namespace,
    oci: Oci,
    oci_runc: Runc,
    oci_runsc: Runsc,
    oci_recent_runsc: RecentRunsc,
    chroot: Chroot,
    landlock: Landlock,
}

/// Each case boots machines, which are emulated: minutes for each user.
mod microvm {
    use super::*;

    #[test]
    fn as_root() {
        if only_in_full() {
            conforms(Who::Root, IsolationLevel::Microvm);
        }
    }

    #[test]
    fn as_user() {
        if only_in_full() {
            conforms(Who::User, IsolationLevel::Microvm);
        }
    }
}

#[test]
fn every_exception_names_a_case() {
    for (_, name, why) in EXCEPTIONS {
        assert!(CASES.iter().any(|(case, _)| case == name), "{name}");
        assert!(!why.is_empty());
    }
}

#[test]
fn a_weaker_level_starts_only_when_what_it_lacks_is_named_and_that_is_recorded() {
    for level in [IsolationLevel::Chroot, IsolationLevel::Landlock] {
        let Some(scene) = Scene::new(Who::User, level) else {
            return;
        };
        let ran = scene.stage.run(
            &["--isolation", level.name(), DIRECT[0], DIRECT[1]],
            &["touch", "ran"],
        );
        ran.ended(125).denied("start-layer-missing").says("pid-ns");
        assert_eq!(scene.stage.read("ran"), None);
        scene.run(&[], &["touch", "ran"]).ok();
        assert!(scene.stage.read("ran").is_some());
        let logs = tree(&scene.stage.state());
        let told = logs.iter().filter(|path| path.is_file()).any(|path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.contains("\"degraded\":[") && text.contains("pid-ns")
        });
        assert!(told, "{logs:?}");
    }
}

#[test]
fn a_start_killed_at_any_step_leaves_no_directory_and_no_process_behind() {
    let Some(scene) = Scene::new(Who::User, IsolationLevel::Landlock) else {
        return;
    };
    let marker = marker(&scene);
    for step in 0..200 {
        let mut command = scene.command(&[], &["/bin/sh", "-c", "true", &marker]);
        command.env("IRONCAGE_FAULT", step.to_string());
        let ran = Running::start(&mut command).finish(MINUTE);
        let gone = || tree(&scene.temporary()).is_empty() && processes_with(&marker).is_empty();
        assert!(
            wait_until(MINUTE, gone),
            "killed at step {step}: {:?} {:?}",
            tree(&scene.temporary()),
            processes_with(&marker)
        );
        if ran.exit == Exit::Code(0) {
            assert!(step > 5, "only {step} steps: is this a debug build?");
            return;
        }
    }
    panic!("no start got through");
}

#[test]
fn a_given_root_is_the_system_inside() {
    for level in [
        IsolationLevel::Namespace,
        IsolationLevel::Oci,
        IsolationLevel::Chroot,
    ] {
        let Some(scene) = Scene::new(Who::User, level) else {
            return;
        };
        let root = scene.stage.aside().join("root");
        for part in ["", "bin", "etc"] {
            scene.stage.mkdir(root.join(part));
        }
        // Ironcage itself is a program that needs nothing of a system.
        let program = root.join("bin/ironcage");
        copy_program(binary(), &program).expect("a copy");
        let path = root.to_string_lossy().into_owned();
        let ran = scene
            .run(&["--root", &path], &["/bin/ironcage", "--version"])
            .ok();
        assert!(ran.stdout().starts_with("ironcage "), "{ran:?}");
        // What is not in the given root is not there.
        scene.run(&["--root", &path], &["/usr/bin/env"]).ended(127);
        scene.run(&[], &["/usr/bin/env"]).ok();
    }
}
