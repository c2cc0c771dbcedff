//! Another system than the host's in a guest: `--root` and `--image`. QEMU comes from the host all the same, and the guest
//! does not see it.

use crate::microvm::{finish, set_up};
use ironcage_tests::{Stage, copy_program, either, skip};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const BUSYBOX: &str = "/bin/busybox";

/// A system of one program.
fn system(stage: &Stage) -> Option<PathBuf> {
    if !Path::new(BUSYBOX).is_file() {
        skip("busybox-static is not installed");
        return None;
    }
    let root = stage.aside().join("system");
    for part in ["", "bin", "etc", "usr"] {
        stage.mkdir(root.join(part));
    }
    copy_program(Path::new(BUSYBOX), &root.join("bin/busybox")).expect("a copy");
    stage.write(root.join("usr/of-root"), "seen");
    Some(root)
}

either! {
    fn commands_are_root_of_the_guest_where_the_policy_says_so_and_of_nothing_else(stage) {
        if !set_up(stage) {
            return;
        }
        let policy = stage.base().join("guest-root.toml");
        stage.write(&policy, "[process]\nguest-root = true\n");
        let policy = policy.to_string_lossy().into_owned();
        // It mounts, stacks file systems and makes devices on storage of its own, and has namespaces.
        let script = "id -u; cd /scratch && mkdir lower upper work all && echo below > lower/file && \
                      mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all && \
                      echo above >> all/file && cat upper/file && mknod null c 1 3 && echo > null && \
                      chown 7 upper/file && stat -c %u upper/file && unshare -Ur id -u && mkdir /sys/fs/cgroup/one && echo group";
        let flags = ["--isolation", "microvm", "--policy", &policy];
        let ran = finish(&mut stage.cage(&flags, &["/bin/sh", "-c", script])).ok();
        assert_eq!(ran.stdout(), "0\nbelow\nabove\n7\n0\ngroup\n", "{ran:?}");
        // Files of the view are the agent's: what it makes belongs to the user, and owners stay.
        let script = "echo made > made && stat -c %u made; chown 7 made; chmod 4755 made; echo $?";
        let direct = [&flags[..], &["--workspace-mode", "direct"]].concat();
        let ran = finish(&mut stage.cage(&direct, &["/bin/sh", "-c", script]));
        assert!(ran.stdout().ends_with("1\n") && !ran.stdout().starts_with("0\n"), "{ran:?}");
        let made = std::fs::metadata(stage.project().join("made")).expect("the file");
        assert_eq!((made.uid(), made.mode() & 0o7777), (stage.uid(), 0o644));
        // Without the key, it is the agent; and there has to be a guest.
        let ran = finish(&mut stage.cage(&["--isolation", "microvm"], &["/bin/sh", "-c", "id -u; ls -d /scratch"]));
        assert_eq!((ran.stdout().as_str(), ran.code()), ("1000\n", 2), "{ran:?}");
        finish(&mut stage.cage(&["--policy", &policy], &["true"])).denied("start-unsupported").says("root of a guest");
    }

    fn another_root_or_an_image_is_the_system_of_the_guest(stage) {
        let Some(root) = system(stage) else {
            return;
        };
        if !set_up(stage) {
            return;
        }
        let root = root.to_string_lossy().into_owned();
        finish(&mut stage.ironcage(["image", "load", &root, "--name", "small:1"])).ok();
        // The host's system is neither at its own place nor where QEMU has it.
        let script = "uname -r; cat /usr/of-root; test ! -e /usr/bin && ! busybox ls /.ironcage/vm/system/usr 2>/dev/null; echo $?; \
                      busybox echo made > made; busybox cat made";
        for flags in [["--root", root.as_str()], ["--image", "small:1"]] {
            let all = [&["--isolation", "microvm"][..], &flags].concat();
            let ran = finish(&mut stage.cage(&all, &["/bin/busybox", "sh", "-c", script])).ok();
            let said = ran.stdout();
            let lines: Vec<&str> = said.lines().collect();
            assert!(matches!(lines[..], [kernel, "seen0", "made"] if kernel.contains("cloud")), "{ran:?}");
            finish(&mut stage.cage(&all, &["/usr/bin/env"])).ended(127);
        }
        // Root of an image that it can write is another matter.
        let writable = ["--isolation", "microvm", "--image", "small:1", "--writable-image", "--root-inside"];
        finish(&mut stage.cage(&writable, &["/bin/busybox", "true"])).denied("start-unsupported").says("user 0");
    }
}
