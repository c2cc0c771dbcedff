//! What an image says of the command that runs in it: user, working directory, entry point and environment, each
//! within the policy.

use crate::image_fixtures::{Layout, image, text};
use ironcage_tests::{Ran, Stage, Who, both, either};
use std::fs;

/// Prints who runs, and where.
const LOOK: &str = "id -u; id -g; id -un; echo $USER $HOME; cd ~ && touch made && ls made; cd - >/dev/null; B=/bin/busybox; $B pwd";

/// The image with these flags of umoci, and users of its own.
fn with(stage: &Stage, flags: &[&str]) -> Layout {
    let layout = Layout::new();
    let root = layout.path("more");
    fs::create_dir_all(root.join("srv/app")).expect("made");
    fs::create_dir_all(root.join("etc")).expect("made");
    let passwd =
        "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\nfake:x:0:0::/:/bin/sh\n";
    fs::write(root.join("etc/passwd"), passwd).expect("written");
    fs::write(root.join("etc/group"), "root:x:0:\nstaff:x:50:web\n").expect("written");
    let start = "#!/bin/sh\necho started in $(/bin/busybox pwd) with $*\n";
    fs::write(root.join("srv/app/start.sh"), start).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(root.join("srv/app/start.sh"), mode).expect("executable");
    let name = format!("{}:small", text(&layout.path("oci")));
    for part in ["etc/passwd", "etc/group", "srv"] {
        let (from, to) = (root.join(part), format!("/{part}"));
        let words = ["insert", "--rootless", "--image", &name, text(&from), &to];
        crate::image_fixtures::tool("umoci", &words);
    }
    layout.configure(flags);
    image(stage, &["load", text(&layout.saved())]).ok();
    layout
}

fn shell(stage: &Stage, flags: &[&str], script: &str) -> Ran {
    let flags = [&["-q", "--image", "small:1"], flags].concat();
    stage.run(&flags, &["-c", script])
}

both! {
    fn the_user_of_an_image_runs_the_command_within_the_policy(stage) {
        let _layout = with(stage, &["--config.user", "web:staff"]);
        let home = stage.home().display().to_string();
        let project = stage.project().display().to_string();
        stage.write(stage.project().join("mine"), "workspace\n");
        let seen = shell(stage, &[], LOOK).ok().stdout();
        assert_eq!(seen, format!("33\n50\nweb\nweb {home}\nmade\n{project}\n"));
        // The user's files are its own, and what it writes is a change like any other.
        let written = shell(stage, &[], "/bin/busybox stat -c %u:%g mine && echo more >> mine && cat mine");
        assert!(written.stdout().ends_with("workspace\nmore\n"), "{written:?}");
        assert_eq!(stage.read("mine").as_deref(), Some("workspace\n"));
        // A flag names another one, by name or number, with or without a group.
        for (user, expected) in [("web", "33\n34\n"), ("33", "33\n34\n"), ("1234", "1234\n0\n"), ("7:8", "7\n8\n"), ("root", "0\n0\n")] {
            let seen = shell(stage, &["--user", user], "id -u; id -g").ok();
            assert_eq!(seen.stdout(), expected, "{user}");
        }
        // The policy's user 0 counts more than the image's user.
        assert_eq!(shell(stage, &["--root-inside"], "id -u").ok().stdout(), "0\n");
        for (user, why) in [
            ("nobody", "/etc/passwd has no user of that name"),
            ("web:nobody", "/etc/group has no group of that name"),
            ("70000", "expected IDs up to 65534"),
            ("fake", "the policy does not allow user 0"),
        ] {
            shell(stage, &["--user", user], "true").ended(125).says(why);
        }
        // No privileges come with any of them.
        for user in ["web", "root"] {
            let caps = shell(stage, &["--user", user], "cat /proc/self/status").ok().stdout();
            assert!(caps.contains("CapBnd:\t0000000000000000"), "{user}: {caps}");
        }
    }

    fn an_image_gives_nobody_user_0(stage) {
        // By its own name, and by one that its list makes user 0.
        for user in ["root", "0:0", "fake"] {
            let _layout = with(stage, &["--config.user", user]);
            assert_eq!(shell(stage, &[], "id -u; id -un").ok().stdout(), "1000\nagent\n", "{user}");
            assert_eq!(shell(stage, &["--root-inside"], "id -u").ok().stdout(), "0\n", "{user}");
            let shown = ironcage_tests::Running::start(&mut stage.ironcage(["plan", "--image", "small:1"]))
                .finish(crate::image_fixtures::DEADLINE).ok();
            let text = shown.stdout() + &shown.stderr;
            assert!(text.contains("names user 0: the command runs as the agent"), "{text}");
        }
    }

    fn the_working_directory_of_an_image_is_that_of_its_own_command(stage) {
        let flags = ["--config.workingdir", "/srv/app", "--config.entrypoint", "./start.sh", "--config.cmd", "own", "--config.cmd", "words"];
        let _layout = with(stage, &flags);
        let project = stage.project().display().to_string();
        let image = ["-q", "--image", "small:1"];
        let run = |flags: &[&str], words: &[&str]| stage.run(&[&image[..], flags].concat(), words);
        assert_eq!(run(&[], &[]).ok().stdout(), "started in /srv/app with own words\n");
        // With words of the user's, the same program in their directory.
        assert_eq!(run(&[], &["mine"]).ok().stdout(), format!("started in {project} with mine\n"));
        assert_eq!(run(&["--workdir", "."], &["mine"]).ok().stdout(), "started in /srv/app with mine\n");
        assert_eq!(run(&["--workdir", ".."], &["mine"]).ok().stdout(), "started in /srv with mine\n");
        assert_eq!(run(&["--workdir", "/tmp"], &[]).ok().stdout(), "started in /tmp with own words\n");
        // Another entry point has arguments of its own, and an empty one is none.
        assert_eq!(run(&["--entrypoint", "/bin/echo"], &["hello"]).ok().stdout(), "hello\n");
        assert_eq!(run(&["--entrypoint", ""], &["/bin/echo", "plain"]).ok().stdout(), "plain\n");
        run(&["--workdir", "/srv/none"], &["mine"]).ended(125).says("/srv/none");
        // What exec runs has the same user and directory.
        let shown = stage.run(&["-q", "--image", "small:1", "--workdir", "/srv", "--entrypoint", ""], &["/bin/busybox", "pwd"]);
        assert_eq!(shown.ok().stdout(), "/srv\n");
    }
}

either! {
    /// Names at the top of an image that a cage uses itself.
    fn an_image_takes_no_place_of_the_cages(stage) {
        let layout = Layout::new();
        let evil = layout.path("evil");
        fs::create_dir_all(evil.join("image")).expect("made");
        fs::create_dir_all(evil.join("bin")).expect("made");
        for name in ["image/passwd", "image/resolv.conf", "image/hosts", "bin/ironcage"] {
            fs::write(evil.join(name), "evil\n").expect("written");
        }
        let name = format!("{}:small", text(&layout.path("oci")));
        for to in ["/.hidden", "/.ironcage", "/.other"] {
            crate::image_fixtures::tool("umoci", &["insert", "--rootless", "--image", &name, text(&evil), to]);
        }
        image(stage, &["load", text(&layout.saved())]).ok();
        let look = "cat /.other/image/hosts; cat /etc/passwd /etc/hosts /etc/resolv.conf /.ironcage/bin/ironcage";
        for flags in [&[][..], &["--writable-image"], &["--writable-image", "--root-inside"]] {
            let seen = shell(stage, flags, look).stdout();
            assert_eq!(seen.matches("evil").count(), 1, "{flags:?}: {seen}");
            assert!(seen.contains("127.0.0.1 localhost"), "{flags:?}: {seen}");
        }
        let plan = ironcage_tests::Running::start(&mut stage.ironcage(["plan", "--image", "small:1"]));
        let plan = plan.finish(crate::image_fixtures::DEADLINE).ok();
        let notes = plan.stdout() + &plan.stderr;
        assert!(notes.contains("/.hidden of the image is hidden") && !notes.contains("/.other of the image"), "{notes}");
    }

    /// An image whose directory lies where the cage has its own.
    fn a_working_directory_that_is_not_in_the_cage_is_refused(stage) {
        let _layout = with(stage, &["--config.workingdir", "/run/app"]);
        stage.run(&["-q", "--image", "small:1"], &[]).ended(125).says("/run/app");
        assert_eq!(stage.run(&["-q", "--image", "small:1", "--workdir", "/srv"], &[]).ok().stdout(), "default\n");
        // The command of the user does not start there.
        shell(stage, &[], "true").ok();
        if stage.who() == Who::User {
            // The file of a user's own policy decides on user 0, whatever the image says.
            let policy = stage.base().join("root.toml");
            stage.write(&policy, "[process]\nroot-inside = true\n");
            assert_eq!(shell(stage, &["--policy", text(&policy), "--user", "web"], "id -u").ok().stdout(), "33\n");
        }
    }
}
