//! Binding a plan: every symbol gets its value, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::Privilege;
use ironcage_model::{ASK_PROGRAM, ASK_SOCKET, CageId};
use ironcage_plan::{
    Access, BindError, Bindings, ChangeBinding, FileBinding, Hardening, Item, NodeKind, Plan,
    SupervisorFile, ViewOp,
};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use std::path::Path;

fn plan() -> Plan {
    let flags = FlagLayer {
        allow_sockets: vec!["/run/daemon.sock".into()],
        ..FlagLayer::default()
    };
    plan_of("coding-agent", flags, &request(), &host(Privilege::User)).unwrap()
}

fn files(plan: &Plan) -> Vec<FileBinding> {
    let files = plan.supervisor_files().enumerate();
    files
        .map(|(index, (_, target))| FileBinding {
            target: target.to_owned(),
            source: format!("/run/ironcage/sockets/{index}").into(),
        })
        .collect()
}

fn id() -> CageId {
    CageId::from_entropy([7; 12])
}

#[test]
fn what_the_supervisor_puts_into_the_view_is_in_the_plan() {
    let plan = plan();
    let planned: Vec<_> = plan.supervisor_files().collect();
    assert_eq!(
        planned,
        [
            (SupervisorFile::SocketProxy, Path::new("/run/daemon.sock")),
            (SupervisorFile::RequestSocket, Path::new(ASK_SOCKET)),
            (SupervisorFile::InsideProgram, Path::new(ASK_PROGRAM)),
        ]
    );
}

#[test]
fn binding_replaces_symbols_and_changes_nothing_else() {
    let mut plan = plan();
    plan.hardening = Some(Item {
        what: Hardening {
            wanted: 2,
            processors: Vec::new(),
            speculation: false,
        },
        origin: "test".into(),
    });
    let files = files(&plan);
    let id = id();
    let bound = plan
        .bind(Bindings {
            cage: &id,
            processors: &[2, 3],
            change: None,
            files: files.clone(),
        })
        .unwrap();
    assert_eq!(bound.digest(), plan.digest());
    assert_eq!(bound.source(), &plan);
    assert_eq!(bound.supervisor_files().count(), 0);
    // With the symbols put back it is the plan again.
    let mut back: Plan = (*bound).clone();
    assert_eq!(back.hardening.as_ref().unwrap().what.processors, [2, 3]);
    back.hardening.as_mut().unwrap().what.processors.clear();
    for (item, planned) in back.view.iter_mut().zip(&plan.view) {
        let ViewOp::Supervisor { target, .. } = &planned.what else {
            continue;
        };
        let file = files.iter().find(|file| file.target == *target).unwrap();
        let expected = ViewOp::Bind {
            source: file.source.clone(),
            target: target.clone(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        };
        assert_eq!(item.what, expected);
        item.what = planned.what.clone();
    }
    assert_eq!(back, plan);
}

#[test]
fn a_symbol_without_a_value_and_a_value_without_a_symbol_are_errors() {
    let plan = plan();
    let id = id();
    let bind = |files| {
        let bound = plan.bind(Bindings {
            cage: &id,
            processors: &[],
            change: None,
            files,
        });
        bound.map(drop)
    };
    assert_eq!(bind(files(&plan)), Ok(()));
    let mut fewer = files(&plan);
    let missing = fewer.remove(1);
    let target = missing.target.clone();
    assert_eq!(bind(fewer), Err(BindError::MissingFile { target }));
    let mut more = files(&plan);
    let target = Path::new("/usr/bin/sh").to_owned();
    more.push(FileBinding {
        target: target.clone(),
        source: "/tmp/evil".into(),
    });
    assert_eq!(bind(more), Err(BindError::UnplannedFile { target }));
}

#[test]
fn fewer_processors_than_planned_are_an_error() {
    let mut plan = plan();
    plan.hardening = Some(Item {
        what: Hardening {
            wanted: 2,
            processors: Vec::new(),
            speculation: false,
        },
        origin: "test".into(),
    });
    let id = id();
    let bind = |processors| {
        let bound = plan.bind(Bindings {
            cage: &id,
            processors,
            change: None,
            files: files(&plan),
        });
        bound.map(drop)
    };
    let error = BindError::Processors {
        planned: 2,
        bound: 1,
    };
    assert_eq!(bind(&[4]), Err(error));
    assert_eq!(bind(&[4, 5]), Ok(()));
    // A whole core may have more threads than wanted.
    assert_eq!(bind(&[4, 5, 6, 7]), Ok(()));
}

#[test]
fn a_new_change_gets_its_directory_everywhere() {
    let plan = plan();
    let (planned, real) = (request().change.directory, "/var/changes/w7ab64qv2");
    let upper = |plan: &Plan| {
        let mut view = plan.view.iter();
        view.find_map(|item| match &item.what {
            ViewOp::Overlay { upper, work, .. } => Some((upper.clone(), work.clone())),
            _ => None,
        })
        .unwrap()
    };
    assert!(upper(&plan).0.starts_with(&planned));
    let id = id();
    let change = ChangeBinding {
        planned: planned.clone(),
        real: real.into(),
    };
    let bound = plan
        .bind(Bindings {
            cage: &id,
            processors: &[],
            change: Some(&change),
            files: files(&plan),
        })
        .unwrap();
    let (upper, work) = upper(&bound);
    assert_eq!(upper, Path::new(real).join("upper"));
    assert_eq!(work, Path::new(real).join("work"));
    assert!(
        bound
            .writable
            .iter()
            .all(|path| !path.starts_with(&planned))
    );
    assert_eq!(bound.digest(), plan.digest());
}
