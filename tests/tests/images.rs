//! Container images: from a real registry and from archives to cages, and what is refused on the way.

use crate::image_fixtures::{DEADLINE, Layout, Registry, image, left, text, tool};
use ironcage_tests::{Exit, Running, Who, both};
use std::fs;
use std::process::Stdio;
use std::time::Duration;

both! {
    fn an_archive_becomes_the_system_of_a_cage(stage) {
        let layout = Layout::new();
        let loaded = image(stage, &["load", text(&layout.saved())]).ok().stdout();
        assert!(loaded.starts_with("small:1  "), "{loaded}");
        stage.write(stage.project().join("mine"), "workspace\n");
        let look = "cat /etc/release mine; id; echo $GREETING; ls /etc/gone /usr/bin/env; echo x > made; echo y > /opt/app/y";
        // The entry point is the shell.
        let ran = stage.run(&["-q", "--image", "small:1"], &["-c", look]);
        let seen = ran.stdout();
        assert!(seen.starts_with("upper\nworkspace\nuid=1000(agent)") && seen.contains("hello"), "{ran:?}");
        for absent in ["/etc/gone: No such file", "/usr/bin/env: No such file", "/opt/app/y: Read-only file system"] {
            assert!(ran.stderr.contains(absent), "{absent}: {ran:?}");
        }
        assert!(!stage.project().join("made").exists(), "it is in the pending change");
        // On the host the same programs are there.
        stage.sh("ls /usr/bin/env").ok();
        // Without a command it is the image's own.
        assert_eq!(stage.run(&["-q", "--image", "small:1"], &[]).ok().stdout(), "default\n");
        // With another image, or none of that name, it says what to do.
        stage.run(&["-q", "--image", "127.0.0.1:1/none:1"], &["-c", "true"]).ended(125).says("cannot pull");
    }

    fn an_image_without_a_name_is_called_after_its_file(stage) {
        let layout = Layout::new();
        layout.saved();
        tool("chmod", &["-R", "a+rX", text(&layout.path("oci"))]);
        // umoci writes a tag alone: `small` of the layout `oci`.
        let loaded = image(stage, &["load", text(&layout.path("oci"))]).ok().stdout();
        assert!(loaded.starts_with("localhost/oci:small  "), "{loaded}");
        let ran = stage.run(&["-q", "--image", "localhost/oci:small"], &["-c", "cat /etc/release"]);
        assert_eq!(ran.ok().stdout(), "upper\n");
        let named = image(stage, &["load", "--name", "mine:2", text(&layout.path("oci"))]).ok().stdout();
        assert!(named.contains("mine:2"), "{named}");
        // A name that means another image from now on is said.
        let other = Layout::new();
        other.configure(&["--config.env", "OTHER=1"]);
        let again = image(stage, &["load", "--name", "mine:2", text(&layout.path("oci"))]).ok();
        assert!(!again.stderr.contains("before"), "{again:?}");
        let taken = image(stage, &["load", "--name", "mine:2", text(&other.saved())]).ok();
        assert!(taken.stderr.contains("mine:2 was"), "{taken:?}");
    }

    fn a_writable_image_is_changed_beside_itself_and_committed(stage) {
        let layout = Layout::new();
        image(stage, &["load", text(&layout.saved())]).ok();
        image(stage, &["commit", "mine:1"]).failed("nothing-to-commit");
        let write = "echo new > /opt/app/y; rm /etc/release; mkdir /opt/made; touch /opt/made/x; ls /opt/app; \
                     ls /etc/release; cat /etc/passwd";
        let ran = stage.run(&["-q", "--image", "small:1", "--writable-image"], &["-c", write]);
        assert!(ran.stdout().contains("y\n"), "{ran:?}");
        assert!(ran.stderr.contains("/etc/release: No such file"), "{ran:?}");
        // The image itself is as it was, and no pending change is about it.
        let look = "cat /etc/release /opt/app/y";
        let same = stage.run(&["-q", "--image", "small:1"], &["-c", look]);
        assert!(same.stdout() == "upper\n" && same.stderr.contains("'/opt/app/y': No such file"), "{same:?}");
        let committed = image(stage, &["commit", "mine:1"]).ok().stdout();
        assert!(committed.starts_with("mine:1  ") && committed.contains("4 layers"), "{committed}");
        let look = "cat /opt/app/y; ls /opt/made /etc/release; echo z > /opt/app/z";
        let ran = stage.run(&["-q", "--image", "mine:1"], &["-c", look]);
        assert_eq!(ran.stdout(), "new\n/opt/made:\nx\n", "{ran:?}");
        for refused in ["/etc/release: No such file", "/opt/app/z: Read-only file system"] {
            assert!(ran.stderr.contains(refused), "{refused}: {ran:?}");
        }
        // Each start begins with an empty layer.
        let again = stage.run(&["-q", "--image", "small:1", "--writable-image"], &["-c", "cat /etc/release"]);
        assert_eq!(again.ok().stdout(), "upper\n");
        image(stage, &["commit", "mine:2"]).failed("nothing-to-commit");
        // What others would read as deletions is not committed.
        stage.run(&["-q", "--image", "small:1", "--writable-image"], &["-c", "touch /opt/.wh.app"]).ok();
        image(stage, &["commit", "mine:2"]).ended(125).says(".wh.");
        // Nor is what would fill the disk of whoever commits it.
        let sparse = ["-c", "/bin/busybox truncate -s 3G /opt/sparse"];
        stage.run(&["-q", "--image", "small:1", "--writable-image"], &sparse).ok();
        image(stage, &["commit", "mine:2"]).ended(125).says("sparse");
        image(stage, &["show", "mine:2"]).ended(125);
    }

    fn root_of_a_writable_image_is_what_package_managers_need(stage) {
        let layout = Layout::new();
        image(stage, &["load", text(&layout.saved())]).ok();
        let flags = ["-q", "--image", "small:1", "--writable-image"];
        let root = [&flags[..], &["--root-inside"]].concat();
        let manage = "cd /opt/app; echo x >x; B=/bin/busybox; $B chown 7:8 x && $B chmod 4755 x && $B stat -c %u:%g:%a x; \
                      echo new:x:9:9::/:/bin/sh >/etc/passwd+ && $B mv /etc/passwd+ /etc/passwd && cat /etc/passwd; \
                      mkdir /run/lock && echo locked; $B grep CapEff /proc/self/status";
        let seen = stage.run(&root, &["-c", manage]).ok().stdout();
        let (owner, capabilities) = match stage.who() {
            Who::Root => ("7:8:4755", "00000000000000eb"),
            // One ID: nothing changed, and nothing failed.
            Who::User => ("0:0:4755", "0000000000000000"),
        };
        let expected = format!("{owner}\nnew:x:9:9::/:/bin/sh\nlocked\nCapEff:\t{capabilities}\n");
        assert_eq!(seen, expected);
        image(stage, &["commit", "mine:1"]).ok();
        let kept = stage.run(&["-q", "--image", "mine:1"], &["-c", "/bin/busybox stat -c %a /opt/app/x; cat /etc/passwd"]);
        assert!(kept.ok().stdout().starts_with("755\nnew:x:9:9"), "the bit is not in an image");
        // The agent is not root of it, and where files are real nobody sets the bit.
        let denied = "cd /opt/app; echo x >x; /bin/busybox chown 7:8 x; /bin/busybox chmod 4755 x; /bin/busybox stat -c %a x";
        let agent = stage.run(&flags, &["-c", denied]).ok();
        assert!(agent.stdout() == "644\n" && agent.stderr.contains("chown"), "{agent:?}");
        let direct = [&root[..], &["--workspace-mode", "direct"]].concat();
        let direct = stage.run(&direct, &["-c", "echo x >x; /bin/busybox chmod 4755 x; /bin/busybox stat -c %a x"]);
        assert_eq!(direct.ok().stdout(), "644\n");
    }

    /// A lease on writing is on real files: a program with the bit there would run as the user who
    /// started the cage, root included, for everybody on the host.
    fn root_of_a_writable_image_sets_no_set_id_bits_by_a_lease(stage) {
        let layout = Layout::new();
        image(stage, &["load", text(&layout.saved())]).ok();
        let aside = stage.aside();
        let shown = aside.display();
        let run = |right: &str| {
            let policy = stage.base().join("ceiling.toml");
            stage.write(&policy, format!("[ceiling.auto.files]\n{right} = [\"{shown}\"]\n"));
            let flags = ["-q", "--image", "small:1", "--writable-image", "--root-inside", "--policy", text(&policy)];
            let set = format!(
                "B=/bin/busybox; /.ironcage/bin/ironcage ask --{right} {shown} --for 60s --reason test >/opt/asked; $B cut -c-7 /opt/asked; \
                 for d in /opt {shown}; do for mode in 4755 2755; do echo x >$d/x; $B chmod $mode $d/x; $B stat -c %a $d/x; done; done"
            );
            stage.run(&flags, &["-c", &set]).stdout()
        };
        assert_eq!(run("write"), "granted\n644\n644\n644\n644\n");
        let outside = std::fs::metadata(aside.join("x")).expect("what the lease gives is there");
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&outside.permissions()) & 0o7777, 0o644);
        // By a lease on reading it writes nowhere but aside.
        let read = run("read");
        assert!(read.starts_with("granted\n4755\n2755\n") && !read.contains("/x"), "{read}");
    }

    fn one_cage_at_a_time_has_the_writable_image_of_a_workspace(stage) {
        let layout = Layout::new();
        image(stage, &["load", text(&layout.saved())]).ok();
        let flags = ["-q", "--image", "small:1", "--writable-image"];
        let mut command = stage.cage(&flags, &["-c", "echo ready; cat"]);
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let (mut first, mut output) = ([0_u8; 6], running.stdout());
        std::io::Read::read_exact(&mut output, &mut first).expect("ready");
        stage.run(&flags, &["-c", "true"]).ended(125).says("uses its image writable");
        image(stage, &["commit", "mine:1"]).ended(125).says("uses its image writable");
        drop(running.stdin());
        running.finish(DEADLINE).ok();
        stage.run(&flags, &["-c", "true"]).ok();
        image(stage, &["rm", "small:1"]).ok();
        assert_eq!(left(stage, "systems"), 0, "it goes with its image");
    }

    fn a_running_cage_keeps_its_image(stage) {
        let layout = Layout::new();
        image(stage, &["load", text(&layout.saved())]).ok();
        let mut command = stage.cage(&["-q", "--image", "small:1"], &["-c", "echo ready; cat"]);
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let (mut first, mut output) = ([0_u8; 6], running.stdout());
        std::io::Read::read_exact(&mut output, &mut first).expect("ready");
        image(stage, &["rm", "small:1"]).failed("image-in-use");
        image(stage, &["prune", "--all"]).ok();
        assert_eq!(left(stage, "images"), 1);
        drop(running.stdin());
        running.finish(DEADLINE).ok();
        image(stage, &["rm", "small:1"]).ok();
        for part in ["images", "names", "layers", "roots", "blobs", "temporary"] {
            assert_eq!(left(stage, part), 0, "{part}");
        }
    }

    fn an_image_is_pulled_from_a_registry_also_after_a_kill(stage) {
        let (layout, registry) = (Layout::new(), Registry::start());
        registry.push(&layout);
        let name = registry.image();
        // TLS is left out for this machine only, and only by word.
        image(stage, &["pull", &name]).ended(125);
        image(stage, &["pull", "--insecure", "registry.example/team/small:1"]).ended(125).says("not on this machine");
        // In the middle of a download, and then at each step of the store.
        for wait in [5, 40] {
            let running = Running::start(&mut stage.ironcage(["image", "pull", "--insecure", &name]));
            std::thread::sleep(Duration::from_millis(wait));
            running.signal(rustix::process::Signal::KILL);
            running.finish(DEADLINE);
        }
        let mut killed = 0;
        loop {
            let mut pull = stage.ironcage(["image", "pull", "--insecure", &name]);
            let ran = Running::start(pull.env("IRONCAGE_FAULT", killed.to_string())).finish(DEADLINE);
            if ran.exit != Exit::Signal(9) {
                ran.ok();
                break;
            }
            killed += 1;
            // What is listed is whole.
            if image(stage, &["list"]).ok().stdout().contains(&name) {
                let look = stage.run(&["-q", "--image", &name], &["-c", "cat /etc/release"]);
                assert_eq!(look.ok().stdout(), "upper\n", "step {killed}");
            }
        }
        assert!(killed > 1, "killed {killed} times: is this a debug build?");
        let pulled = image(stage, &["pull", "--insecure", &name]).ok().stdout();
        assert!(pulled.contains("3 layers"), "{pulled}");
        let ran = stage.run(&["-q", "--image", &name], &["-c", "cat /etc/release"]).ok();
        assert_eq!(ran.stdout(), "upper\n");
        // What the kills left goes, and the image stays.
        image(stage, &["prune"]).ok();
        assert_eq!((left(stage, "temporary"), left(stage, "partial"), left(stage, "images")), (0, 0, 1));
        // What skopeo reads again is the same image.
        let archive = stage.base().join("exported.tar");
        image(stage, &["export", &name, "-o", text(&archive)]).ok();
        // A rename would replace a link or a device.
        let link = stage.base().join("link.tar");
        std::os::unix::fs::symlink(&archive, &link).expect("a link");
        image(stage, &["export", &name, "-o", text(&link)]).ended(125).says("not a regular file");
        assert!(link.is_symlink());
        let exported = format!("oci-archive:{}", text(&archive));
        tool("skopeo", &["inspect", "--raw", &exported]);
        image(stage, &["rm", &name]).ok();
        image(stage, &["load", text(&archive)]).ok();
        stage.run(&["-q", "--image", &name], &["-c", "true"]).ok();
    }

    fn a_hostile_archive_leaves_nothing(stage) {
        let canary = stage.base().join("canary");
        stage.write(&canary, "untouched");
        let archive = stage.base().join("hostile.tar");
        let script = r#"
import io, sys, tarfile
with tarfile.open(sys.argv[1], "w") as archive:
    link = tarfile.TarInfo("out"); link.type = tarfile.SYMTYPE; link.linkname = sys.argv[2]; archive.addfile(link)
    data = b"overwritten"
    for name in ["out/canary", "../canary", "manifest.json"]:
        entry = tarfile.TarInfo(name); entry.size = len(data); archive.addfile(entry, io.BytesIO(data))
"#;
        let base = text(stage.base()).to_owned();
        let mut python = stage.outside("python3");
        Running::start(python.args(["-c", script, text(&archive), &base])).finish(DEADLINE).ok();
        image(stage, &["load", text(&archive)]).ended(125);
        assert_eq!(fs::read_to_string(&canary).expect("the canary"), "untouched");
        for part in ["images", "layers", "roots", "blobs", "temporary"] {
            assert_eq!(left(stage, part), 0, "{part}");
        }
    }
}
