//! The cases. Each says what is not as promised, or nothing.

use super::scene::{Finding, MINUTE, Scene, demand, marker, same, stray};
use ironcage_tests::{Running, processes_with, tree, wait_until};
use rustix::process::Signal;
use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::chown;
use std::os::unix::net::{SocketAddr, UnixListener};

fn the_exit_status_is_the_commands(scene: &Scene) -> Finding {
    for (script, wanted) in [("exit 3", 3), ("kill -TERM $$", 143), ("exit 0", 0)] {
        let ran = scene.sh(script);
        same(ran.code(), wanted, &ran)?;
    }
    let ran = scene.run(&[], &["no-such-program"]);
    same(ran.code(), 127, &ran)
}

fn streams_are_passed_on_each_on_its_own(scene: &Scene) -> Finding {
    let mut command = scene.command(&[], &["/bin/sh", "-c", "cat; echo out; echo err >&2"]);
    let ran = Running::start(&mut command).feed(vec![b'x'; 200_000], MINUTE);
    same(ran.bytes.len(), 200_004, &ran)?;
    same(ran.stderr.as_str(), "err\n", &ran)
}

fn a_signal_to_the_launcher_reaches_the_command(scene: &Scene) -> Finding {
    // It ends without the signal, too.
    let script = "trap 'echo caught; exit 5' USR1; echo ready; i=0; while [ $i -lt 200 ]; do sleep 0.05; i=$((i + 1)); done";
    let mut cage = Running::start(&mut scene.command(&[], &["/bin/sh", "-c", script]));
    let mut output = cage.stdout();
    let mut word = [0; 6];
    output
        .read_exact(&mut word)
        .map_err(|error| error.to_string())?;
    cage.signal(Signal::USR1);
    let mut rest = String::new();
    output
        .read_to_string(&mut rest)
        .map_err(|error| error.to_string())?;
    let ran = cage.finish(MINUTE);
    same((rest.as_str(), ran.code()), ("caught\n", 5), &ran)
}

fn what_is_granted_is_read_and_nothing_else(scene: &Scene) -> Finding {
    let (granted, other) = (
        scene.stage.aside().join("granted"),
        scene.stage.aside().join("other"),
    );
    scene.stage.write(&granted, "canary-granted");
    scene.stage.write(&other, "canary-other");
    scene
        .stage
        .write(scene.stage.home().join(".netrc"), "canary-home");
    let script = format!(
        "cat {} {} {}/.netrc",
        granted.display(),
        other.display(),
        scene.stage.home().display()
    );
    let outside = scene.stage.sh_outside(&script).ok();
    same(
        outside.stdout(),
        "canary-grantedcanary-othercanary-home".into(),
        &outside,
    )?;
    let path = granted.to_string_lossy().into_owned();
    let ran = scene.run(&["-r", &path], &["/bin/sh", "-c", &script]);
    same(ran.stdout(), "canary-granted".into(), &ran)
}

fn the_workspace_is_written_and_nothing_outside(scene: &Scene) -> Finding {
    let outside = scene.stage.aside().join("planted");
    let script = format!(
        "echo in > inside; echo out > {0}; echo home > {1}/planted; true",
        outside.display(),
        scene.stage.home().display()
    );
    let ran = scene.sh(&script);
    same(scene.stage.read("inside"), Some("in\n".into()), &ran)?;
    demand(
        !outside.exists() && !scene.stage.home().join("planted").exists(),
        || "written outside".into(),
    )?;
    scene.stage.sh_outside(&script).ok();
    demand(outside.exists(), || "the host itself refuses".into())
}

fn what_is_written_is_kept_aside_unless_the_real_files_are_asked_for(scene: &Scene) -> Finding {
    let mut flags = scene.flags();
    flags.push("-q");
    let ran = scene.stage.sh_with(&flags, "echo in > inside; cat inside");
    same(ran.stdout(), "in\n".into(), &ran)?;
    same(scene.stage.read("inside"), None, &ran)?;
    let ran = scene.ironcage(&["apply"]);
    same(ran.code(), 0, &ran)?;
    same(scene.stage.read("inside"), Some("in\n".into()), &ran)
}

fn the_environment_holds_no_secret(scene: &Scene) -> Finding {
    let mut command = scene.command(&[], &["/usr/bin/env"]);
    command.env("SECRET_TOKEN", "canary");
    let ran = Running::start(&mut command).finish(MINUTE);
    demand(
        !ran.stdout().contains("canary") && ran.stdout().contains("IRONCAGE=1"),
        || format!("{ran:?}"),
    )?;
    let mut command = scene.command(&["--env", "SECRET_TOKEN"], &["/usr/bin/env"]);
    command.env("SECRET_TOKEN", "canary");
    let ran = Running::start(&mut command).finish(MINUTE);
    demand(ran.stdout().contains("SECRET_TOKEN=canary"), || {
        format!("{ran:?}")
    })
}

fn home_and_temporary_files_are_there_and_gone_at_the_end(scene: &Scene) -> Finding {
    let ran =
        scene.sh("set -e; echo x > $HOME/kept; echo y > $TMPDIR/kept; cat $HOME/kept $TMPDIR/kept");
    same(ran.stdout(), "x\ny\n".into(), &ran)?;
    let ran = scene.sh("test -e $HOME/kept || test -e $TMPDIR/kept || echo gone");
    same(ran.stdout(), "gone\n".into(), &ran)?;
    demand(!scene.stage.home().join("kept").exists(), || {
        "it was the user's own home".into()
    })
}

fn nothing_is_left_behind(scene: &Scene) -> Finding {
    let deep = "mkdir -p $HOME/a/b/c && chmod 000 $HOME/a/b && ln -s / $TMPDIR/link";
    let ran = scene.sh(deep);
    same(ran.code(), 0, &ran)?;
    let ran = Running::start(&mut scene.command(&["--isolation", "no-such-level"], &["true"]))
        .finish(MINUTE);
    same(ran.code(), 125, &ran)?;
    let left = tree(&scene.temporary());
    demand(left.is_empty(), || format!("left: {left:?}"))
}

fn everything_ends_with_the_command(scene: &Scene) -> Finding {
    let marker = marker(scene);
    let ran = scene.sh(&format!("{}; echo done", stray(&marker)));
    same(ran.stdout(), "done\n".into(), &ran)?;
    demand(
        wait_until(MINUTE, || processes_with(&marker).is_empty()),
        || format!("{:?}", processes_with(&marker)),
    )
}

fn everything_ends_with_the_launcher(scene: &Scene) -> Finding {
    let marker = marker(scene);
    let script = format!("{}; exec sleep 600", stray(&marker));
    let cage = Running::start(&mut scene.command(&[], &["/bin/sh", "-c", &script, &marker]));
    let beat = scene.stage.project().join("beat");
    demand(wait_until(MINUTE, || beat.exists()), || {
        "it never began".into()
    })?;
    cage.signal(Signal::KILL);
    let gone = wait_until(MINUTE, || {
        processes_with(&marker).iter().all(|pid| *pid == cage.pid())
    });
    std::fs::remove_file(&beat).map_err(|error| error.to_string())?;
    demand(gone, || {
        format!("still there: {:?}", processes_with(&marker))
    })?;
    demand(
        wait_until(MINUTE, || tree(&scene.temporary()).is_empty()),
        || format!("left: {:?}", tree(&scene.temporary())),
    )
}

fn the_limit_that_was_reached_is_told(scene: &Scene) -> Finding {
    let ran = scene.run(&["--time", "1s"], &["sleep", "60"]);
    same(
        (ran.code(), ran.stderr.contains("--time")),
        (124, true),
        &ran,
    )?;
    let held = |megabytes: u32| {
        format!(
            "b = bytearray({megabytes} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nimport time\ntime.sleep(0.5)"
        )
    };
    let ran = scene.python(&["--memory", "256M"], &held(32));
    same(ran.code(), 0, &ran)?;
    let ran = scene.python(&["--memory", "256M"], &held(2048));
    same(
        (ran.code(), ran.stderr.contains("--memory")),
        (137, true),
        &ran,
    )?;
    let ran = scene.run(
        &["--disk", "32M"],
        &["/bin/sh", "-c", "head -c 64M /dev/zero > $TMPDIR/big"],
    );
    demand(ran.code() != 0 && ran.stderr.contains("--disk"), || {
        format!("{ran:?}")
    })
}

fn the_network_of_the_host_is_out_of_reach(scene: &Scene) -> Finding {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let script = format!(
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)\nprint('connected')"
    );
    let outside =
        Running::start(scene.stage.outside("python3").args(["-c", &script])).finish(MINUTE);
    same(outside.stdout(), "connected\n".into(), &outside)?;
    let ran = scene.python(&[], &script);
    same((ran.stdout(), ran.code()), (String::new(), 1), &ran)
}

fn local_sockets_of_the_host_are_out_of_reach(scene: &Scene) -> Finding {
    let path = scene.stage.aside().join("socket");
    let _named = UnixListener::bind(&path).expect("a socket");
    let name = marker(scene);
    let address = SocketAddr::from_abstract_name(&name).expect("an address");
    let _abstract = UnixListener::bind_addr(&address).expect("an abstract socket");
    chown(&path, Some(scene.stage.uid()), None).expect("its owner");
    for target in [format!("'{}'", path.display()), format!("'\\0{name}'")] {
        let script = format!(
            "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({target})\nprint('connected')"
        );
        let outside =
            Running::start(scene.stage.outside("python3").args(["-c", &script])).finish(MINUTE);
        same(outside.stdout(), "connected\n".into(), &outside)?;
        let ran = scene.python(&[], &script);
        same((ran.stdout(), ran.code()), (String::new(), 1), &ran)?;
    }
    // A datagram socket needs no connection, also when it comes as one of a pair.
    let script = format!(
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'x', '{}')",
        path.display()
    );
    let ran = scene.python(&[], &script);
    demand(ran.code() == 1, || format!("{ran:?}"))
}

fn processes_of_the_host_cannot_be_signalled_or_changed(scene: &Scene) -> Finding {
    let mut sleeper = scene
        .stage
        .outside("sleep")
        .arg("600")
        .spawn()
        .expect("sleep");
    let pid = sleeper.id();
    let script = format!(
        "import os, resource, signal
def works(call):
    try:
        call()
        return True
    except (OSError, ValueError):
        return False
print(works(lambda: os.kill({pid}, 0)), works(lambda: os.kill({pid}, signal.SIGWINCH)),
    works(lambda: resource.prlimit({pid}, resource.RLIMIT_NOFILE, (9, 9))),
    works(lambda: os.sched_setaffinity({pid}, {{0}})), works(lambda: os.setpriority(os.PRIO_PROCESS, {pid}, 19)),
    works(lambda: open('/proc/{pid}/environ').read()))"
    );
    let ran = scene.python(&[], &script);
    let alive = sleeper.try_wait().expect("our own child").is_none();
    let outside =
        Running::start(scene.stage.outside("python3").args(["-c", &script])).finish(MINUTE);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    same(
        ran.stdout(),
        "False False False False False False\n".into(),
        &ran,
    )?;
    demand(alive, || "it was signalled".into())?;
    same(
        outside.stdout(),
        "True True True True True True\n".into(),
        &outside,
    )
}

fn the_root_cannot_be_left(scene: &Scene) -> Finding {
    // The classic way out: a second chroot below a directory that is still open.
    let script = "
import os
fds = []
for fd in range(3, 256):
    try:
        os.fstat(fd); fds.append(fd)
    except OSError:
        pass
root = os.open('.', os.O_RDONLY)
try:
    os.mkdir('jail')
    os.chroot('jail')
    os.fchdir(root)
    for _ in range(64): os.chdir('..')
    os.chroot('.')
    print('out')
except PermissionError:
    print('kept', fds)
";
    let ran = scene.python(&[], script);
    let _ = std::fs::remove_dir(scene.stage.project().join("jail"));
    same(ran.stdout(), "kept []\n".into(), &ran)
}

fn nothing_is_gained_by_programs_with_set_id_bits(scene: &Scene) -> Finding {
    let script = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.prctl(39, 0, 0, 0, 0), libc.unshare(0x10000000), os.getuid() == 0 and libc.mount(b'a', b'/tmp', b'tmpfs', 0, 0) == 0)";
    let ran = scene.python(&[], script);
    same(ran.stdout(), "1 -1 False\n".into(), &ran)
}

fn a_terminal_of_its_own(scene: &Scene) -> Finding {
    let ran = scene.run(
        &["-t"],
        &["/bin/sh", "-c", "test -t 0 && test -t 1 && echo yes"],
    );
    same(ran.stdout().trim(), "yes", &ran)
}

fn a_second_command_runs_under_the_same_locks(scene: &Scene) -> Finding {
    let name = marker(scene);
    let ran = scene.run(&["-d", "--name", &name], &["sleep", "600"]);
    same(ran.code(), 0, &ran)?;
    let secret = scene.stage.aside().join("exec-secret");
    scene.stage.write(&secret, "canary");
    let script = format!(
        "echo hello > $HOME/x; cat $HOME/x; cat {}; exit 4",
        secret.display()
    );
    let ran = scene.ironcage(&["exec", &name, "--", "/bin/sh", "-c", &script]);
    let stopped = scene.ironcage(&["rm", "-f", &name]);
    same((ran.stdout(), ran.code()), ("hello\n".into(), 4), &ran)?;
    same(stopped.code(), 0, &stopped)
}

fn the_cages_own_control_socket_is_out_of_its_reach(scene: &Scene) -> Finding {
    let name = format!("{}-s", marker(scene));
    let started = scene.run(&["-d", "--name", &name], &["sleep", "600"]);
    same(started.code(), 0, &started)?;
    let id = started.stdout().trim().to_owned();
    let socket = tree(&scene.stage.run_dir()).into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&id)
    });
    let socket = socket.ok_or("there is no control socket")?;
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect('{}')\nprint('connected')",
        socket.display()
    );
    let outside =
        Running::start(scene.stage.outside("python3").args(["-c", &script])).finish(MINUTE);
    let ran = scene.ironcage(&["exec", &name, "--", "/usr/bin/python3", "-c", &script]);
    let stopped = scene.ironcage(&["rm", "-f", &name]);
    same(stopped.code(), 0, &stopped)?;
    same(outside.stdout(), "connected\n".into(), &outside)?;
    same((ran.stdout(), ran.code()), (String::new(), 1), &ran)
}

fn an_exec_has_a_terminal(scene: &Scene) -> Finding {
    let name = format!("{}-t", marker(scene));
    let ran = scene.run(&["-d", "--name", &name], &["sleep", "600"]);
    same(ran.code(), 0, &ran)?;
    let ran = scene.ironcage(&[
        "exec",
        "-t",
        &name,
        "--",
        "/bin/sh",
        "-c",
        "test -t 0 && echo yes",
    ]);
    let stopped = scene.ironcage(&["rm", "-f", &name]);
    same(stopped.code(), 0, &stopped)?;
    same(ran.stdout().trim(), "yes", &ran)
}

fn a_process_list_of_its_own(scene: &Scene) -> Finding {
    let ran = scene.sh("cat /proc/self/comm");
    same(ran.stdout(), "cat\n".into(), &ran)
}

fn the_host_name_is_the_cages(scene: &Scene) -> Finding {
    let ran = scene.sh("uname -n");
    same(ran.stdout(), "cage\n".into(), &ran)
}

fn servers_and_clients_inside_reach_each_other(scene: &Scene) -> Finding {
    let script = "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname())\nprint('connected')";
    let ran = scene.python(&[], script);
    same(ran.stdout(), "connected\n".into(), &ran)
}

fn a_protected_file_cannot_be_written(scene: &Scene) -> Finding {
    let file = scene.stage.project().join(".envrc");
    std::fs::write(&file, "kept\n").expect("a file");
    let owner = std::fs::metadata(scene.stage.project()).expect("the project");
    use std::os::unix::fs::MetadataExt as _;
    chown(&file, Some(owner.uid()), Some(owner.gid())).expect("its owner");
    let ran = scene.sh("echo changed > .envrc");
    same(scene.stage.read(".envrc"), Some("kept\n".into()), &ran)
}

fn a_hidden_file_cannot_be_read(scene: &Scene) -> Finding {
    let file = scene.stage.project().join("hidden");
    std::fs::write(&file, "canary\n").expect("a file");
    let ran = scene.run(&["--hide", "hidden"], &["cat", "hidden"]);
    same((ran.stdout(), ran.code()), (String::new(), 1), &ran)
}

fn what_is_not_granted_cannot_be_told_from_what_is_not_there(scene: &Scene) -> Finding {
    let file = scene.stage.aside().join("known");
    scene.stage.write(&file, "x");
    let ran = scene.sh(&format!("test -e {} && echo seen; true", file.display()));
    same(ran.stdout(), String::new(), &ran)
}

pub(crate) type Case = (&'static str, fn(&Scene) -> Finding);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[Case] = &[$((stringify!($name), $name)),*];
    };
}

cases! {
    the_exit_status_is_the_commands,
    streams_are_passed_on_each_on_its_own,
    a_signal_to_the_launcher_reaches_the_command,
    what_is_granted_is_read_and_nothing_else,
    the_workspace_is_written_and_nothing_outside,
    what_is_written_is_kept_aside_unless_the_real_files_are_asked_for,
    the_environment_holds_no_secret,
    home_and_temporary_files_are_there_and_gone_at_the_end,
    nothing_is_left_behind,
    everything_ends_with_the_command,
    everything_ends_with_the_launcher,
    the_limit_that_was_reached_is_told,
    the_network_of_the_host_is_out_of_reach,
    local_sockets_of_the_host_are_out_of_reach,
    processes_of_the_host_cannot_be_signalled_or_changed,
    the_root_cannot_be_left,
    nothing_is_gained_by_programs_with_set_id_bits,
    a_terminal_of_its_own,
    a_second_command_runs_under_the_same_locks,
    the_cages_own_control_socket_is_out_of_its_reach,
    an_exec_has_a_terminal,
    a_process_list_of_its_own,
    the_host_name_is_the_cages,
    servers_and_clients_inside_reach_each_other,
    a_protected_file_cannot_be_written,
    a_hidden_file_cannot_be_read,
    what_is_not_granted_cannot_be_told_from_what_is_not_there,
}
