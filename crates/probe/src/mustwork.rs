//! Work that a sandbox must allow, so that blocking everything does not win.

use crate::inside::STARTED;
use crate::oracle::{Evidence, contains};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

/// How an item is tried.
#[derive(Debug, Clone, Copy)]
enum ItemTest {
    /// By a shell script in an empty directory of the workspace.
    Script(&'static str),
    /// By a function of the suite's program.
    Function(fn() -> io::Result<()>),
}

/// One thing that must work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) name: &'static str,
    /// Programs that it needs, looked for in the system directories.
    tools: &'static [&'static str],
    way: ItemTest,
}

/// The list.
pub(crate) const ITEMS: &[Item] = &[
    Item {
        name: "compile and run a C program",
        tools: &["gcc"],
        way: ItemTest::Script(
            "printf 'int main(void){return 7;}' > a.c && gcc a.c -o a && { ./a; test $? = 7; }",
        ),
    },
    Item {
        name: "git init and commit",
        tools: &["git"],
        way: ItemTest::Script(
            "git init -q repo && cd repo && echo x > x && git add x && \
             git -c user.name=a -c user.email=a@example.org commit -q -m x && test -n \"$(git log --oneline)\"",
        ),
    },
    Item {
        name: "python3 -m venv",
        tools: &["python3"],
        way: ItemTest::Script(
            "python3 -m venv --without-pip v && v/bin/python -c 'import ssl, sqlite3'",
        ),
    },
    Item {
        name: "threads",
        tools: &[],
        way: ItemTest::Function(threads),
    },
    Item {
        name: "a pty of its own",
        tools: &[],
        way: ItemTest::Function(own_pty),
    },
    Item {
        name: "TCP on its own loopback",
        tools: &[],
        way: ItemTest::Function(loopback),
    },
    Item {
        name: "Unix sockets inside",
        tools: &[],
        way: ItemTest::Function(unix_sockets),
    },
    Item {
        name: "subprocesses and pipes",
        tools: &[],
        way: ItemTest::Function(subprocess),
    },
    Item {
        name: "files in workspace, /tmp and HOME",
        tools: &[],
        way: ItemTest::Function(files),
    },
];

const SYSTEM: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
const WORKS: &str = "@works";

impl Item {
    /// The first program that is missing.
    pub(crate) fn missing_tool(&self) -> Option<&'static str> {
        let present = |tool: &str| {
            SYSTEM
                .iter()
                .any(|place| Path::new(place).join(tool).exists())
        };
        self.tools.iter().copied().find(|tool| !present(tool))
    }

    /// Its command line.
    pub(crate) fn command(&self, program: &Path) -> Vec<OsString> {
        match self.way {
            ItemTest::Script(script) => {
                let whole = format!(
                    "PATH=/usr/local/bin:/usr/bin:/bin; export PATH; echo {STARTED}; \
                     mkdir -p trial && cd trial && {{ {script}; }} && echo {WORKS}"
                );
                vec!["/bin/sh".into(), "-c".into(), whole.into()]
            }
            ItemTest::Function(_) => {
                let words = ["probe", "role", "works", self.name];
                let mut command = vec![program.as_os_str().to_owned()];
                command.extend(words.map(OsString::from));
                command
            }
        }
    }
}

/// A command that does a little and leaves nothing.
pub(crate) fn quiet_command(program: &Path) -> Vec<OsString> {
    let words = ["probe", "role", "works", "threads"];
    let mut command = vec![program.as_os_str().to_owned()];
    command.extend(words.map(OsString::from));
    command
}

/// Whether an item worked.
pub(crate) fn succeeded(evidence: &Evidence) -> bool {
    evidence.status == 0 && contains(&evidence.output, WORKS.as_bytes())
}

/// What went wrong with an item.
pub(crate) fn failure(evidence: &Evidence) -> String {
    let errors = String::from_utf8_lossy(&evidence.errors);
    let last = errors
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no message");
    format!("status {}: {last}", evidence.status)
}

/// Runs the function of an item, inside; gives the exit status.
pub(crate) fn run(name: &str) -> u8 {
    println!("{STARTED}");
    let item = ITEMS.iter().find(|item| item.name == name);
    match item.map(|item| item.way) {
        Some(ItemTest::Function(function)) => match function() {
            Ok(()) => {
                println!("{WORKS}");
                0
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                1
            }
        },
        _ => 2,
    }
}

fn expect(good: bool, what: &str) -> io::Result<()> {
    if good {
        Ok(())
    } else {
        Err(io::Error::other(what.to_owned()))
    }
}

fn threads() -> io::Result<()> {
    let started: Result<Vec<_>, _> = (0..8u32)
        .map(|n| std::thread::Builder::new().spawn(move || n * 2))
        .collect();
    let sum: u32 = started?
        .into_iter()
        .filter_map(|thread| thread.join().ok())
        .sum();
    expect(sum == 56, "threads lost")
}

fn own_pty() -> io::Result<()> {
    use ironcage_sys::rustix::fs::{Mode, OFlags, open};
    use ironcage_sys::rustix::pty;
    let master = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY)?;
    pty::grantpt(&master)?;
    pty::unlockpt(&master)?;
    let name = pty::ptsname(&master, Vec::new())?;
    let slave = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    ironcage_sys::rustix::io::write(&slave, b"through")?;
    let mut buffer = [0u8; 16];
    let length = ironcage_sys::rustix::io::read(&master, &mut buffer)?;
    expect(
        &buffer[..length] == b"through",
        "the pty changed what was written",
    )
}

fn echo(mut near: impl Read + Write, mut far: impl Read + Write) -> io::Result<()> {
    near.write_all(b"ping")?;
    let mut buffer = [0u8; 4];
    far.read_exact(&mut buffer)?;
    far.write_all(&buffer)?;
    near.read_exact(&mut buffer)?;
    expect(&buffer == b"ping", "bytes changed")
}

fn loopback() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    echo(near, listener.accept()?.0)
}

fn unix_sockets() -> io::Result<()> {
    let path = format!("/tmp/works-{}", std::process::id());
    let listener = UnixListener::bind(&path)?;
    let near = UnixStream::connect(&path)?;
    std::fs::remove_file(&path)?;
    echo(near, listener.accept()?.0)
}

fn subprocess() -> io::Result<()> {
    let mut child = Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(b"through a pipe")?;
    }
    let output = child.wait_with_output()?;
    expect(
        output.status.success() && output.stdout == b"through a pipe",
        "cat changed bytes",
    )
}

fn files() -> io::Result<()> {
    let home = std::env::var("HOME").map_err(io::Error::other)?;
    for directory in [".", "/tmp", &home] {
        let path = Path::new(directory).join(format!("works-{}", std::process::id()));
        std::fs::write(&path, b"x")?;
        std::fs::remove_file(&path)?;
    }
    Ok(())
}
