//! Names, sockets and sweeps of a runtime directory.

use super::*;

/// No process has this number: it is above what kernels give.
const NOBODY: u32 = 1 << 30;

fn place() -> (tempfile::TempDir, RuntimeDir) {
    let base = tempfile::tempdir().unwrap();
    // Longer than a socket's address may be.
    let long = base.path().join("x".repeat(120)).join("run");
    let place = RuntimeDir {
        paths: vec![long],
        sweep_is_due: Cell::new(false),
    };
    (base, place)
}

fn id(text: &str) -> CageId {
    text.parse().unwrap()
}

#[test]
fn a_socket_is_found_reached_and_gone_with_its_listener() {
    let (_base, place) = place();
    let cage = id("c0123456789ab");
    assert!(place.entries().unwrap().is_empty());
    let listener = place.listen(&cage).unwrap();
    let entries = place.entries().unwrap();
    assert_eq!(entries.len(), 1);
    assert!(entries[0].id == cage && entries[0].is_alive());
    assert!(matches!(
        RuntimeDir::dial(&entries[0]),
        Ok(Dialled::Open(_))
    ));
    drop(listener);
    assert!(matches!(RuntimeDir::dial(&entries[0]), Ok(Dialled::Dead)));
    assert!(place.entries().unwrap().is_empty());
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_base, place) = place();
    let cage = id("c0123456789ab");
    drop(place.listen(&cage).unwrap());
    let cages = place.paths[0].join(CAGES);
    std::fs::set_permissions(&cages, std::fs::Permissions::from_mode(0o750)).unwrap();
    let refused = place.listen(&cage).unwrap_err();
    assert!(matches!(refused, PlaceError::Shared { .. }), "{refused}");
}

#[test]
fn sweeping_removes_what_the_dead_left_and_nothing_else() {
    let (_base, place) = place();
    let living = place.listen(&id("c0123456789ab")).unwrap();
    let cages = place.paths[0].join(CAGES);
    let name = format!("c000000000000.{NOBODY}");
    let dead = cages.join(&name);
    let directory = open_directory(&cages).unwrap();
    let socket = new_socket(SocketFlags::CLOEXEC).unwrap();
    bind(&socket, &address(directory.as_fd(), &name).unwrap()).unwrap();
    drop(socket);
    assert!(dead.exists());
    assert!(living.is_beside_a_dead_one());
    place.sweep().unwrap();
    assert!(!dead.exists());
    let other = place.listen(&id("c0123456789ac")).unwrap();
    assert!(!other.is_beside_a_dead_one());
    drop(other);
    let left = place.entries().unwrap();
    assert_eq!(left.len(), 1);
    drop(living);
}

#[test]
fn a_sweep_is_due_when_the_last_one_was_long_ago() {
    let (_base, place) = place();
    let cage = id("c0123456789ab");
    drop(place.listen(&cage).unwrap());
    assert!(!place.sweep_is_due());
    let day = Duration::from_secs(86_400);
    for then in [SystemTime::now() - day, SystemTime::now() + day] {
        let top = std::fs::File::open(&place.paths[0]).unwrap();
        top.set_modified(then).unwrap();
        drop(place.listen(&cage).unwrap());
        assert!(place.sweep_is_due());
        place.sweep().unwrap();
        drop(place.listen(&cage).unwrap());
        assert!(!place.sweep_is_due());
    }
}

#[test]
fn a_name_is_one_running_cages_and_free_again_when_its_owner_is_gone() {
    let (_base, place) = place();
    let (first, second) = (id("c0123456789ab"), id("c0123456789ac"));
    let claim = place.claim("web", &first).unwrap();
    assert_eq!(place.named("web"), Some(first.clone()));
    let taken = place.claim("web", &second).unwrap_err();
    assert!(matches!(taken, PlaceError::Taken { .. }), "{taken}");
    // As after a kill: the link stays, its owner is gone.
    drop(claim);
    let link = place.paths[0].join(NAMES).join("web");
    std::os::unix::fs::symlink(format!("{first}.{NOBODY}"), &link).unwrap();
    let left = || {
        std::fs::read_dir(place.paths[0].join(NAMES))
            .unwrap()
            .count()
    };
    assert_eq!(left(), 1);
    place.sweep().unwrap();
    assert_eq!(left(), 0);
    std::os::unix::fs::symlink(format!("{first}.{NOBODY}"), &link).unwrap();
    let claim = place.claim("web", &second).unwrap();
    assert_eq!(place.named("web"), Some(second));
    place.sweep().unwrap();
    assert_eq!(left(), 1, "a living owner keeps its name");
    drop(claim);
    assert_eq!(place.named("web"), None);
}

#[test]
fn names_are_plain_words_and_no_paths_or_ids() {
    for good in ["web", "a", "My-agent_2.0", "c012"] {
        check_name(good).unwrap();
    }
    for bad in [
        "",
        "../x",
        "a/b",
        ".hidden",
        "-x",
        "c0123456789ab",
        "a b",
        "ä",
    ] {
        check_name(bad).unwrap_err();
    }
}
