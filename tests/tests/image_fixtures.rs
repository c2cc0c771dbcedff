//! Images for tests: made by umoci, saved by skopeo, and pushed to a registry on the loopback.

use ironcage_tests::{Ran, Running, Stage};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[track_caller]
pub(crate) fn image(stage: &Stage, args: &[&str]) -> Ran {
    let args = ["image"].iter().chain(args);
    Running::start(&mut stage.ironcage(args)).finish(DEADLINE)
}

/// A tool of the field, as whoever runs the tests.
#[track_caller]
pub(crate) fn tool(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output =
        output.unwrap_or_else(|error| panic!("{program}: {error}; ./scripts/test installs it"));
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {shown}");
}

/// An OCI layout with one image of two layers, made by umoci: a small system, then a file on top of it.
pub(crate) struct Layout {
    directory: tempfile::TempDir,
}

impl Layout {
    pub(crate) fn new() -> Layout {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout { directory };
        let root = layout.path("root");
        for name in ["bin", "etc", "opt/app"] {
            fs::create_dir_all(root.join(name)).expect("made");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static");
        for name in ["sh", "ls", "cat", "id", "echo", "mkdir", "touch"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("linked");
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("written");
        fs::write(root.join("etc/release"), "lower\n").expect("written");
        fs::write(root.join("etc/gone"), "lower\n").expect("written");
        let upper = layout.path("upper");
        fs::create_dir_all(&upper).expect("made");
        fs::write(upper.join("release"), "upper\n").expect("written");
        // More than one chunk of a download.
        let noise: Vec<u8> = (0..6_000_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect();
        fs::write(upper.join("noise"), noise).expect("written");
        let oci = layout.path("oci");
        let (oci, name) = (text(&oci), format!("{}:small", text(&oci)));
        tool("umoci", &["init", "--layout", oci]);
        tool("umoci", &["new", "--image", &name]);
        tool(
            "umoci",
            &["insert", "--rootless", "--image", &name, text(&root), "/"],
        );
        tool(
            "umoci",
            &[
                "insert",
                "--rootless",
                "--image",
                &name,
                text(&upper),
                "/etc",
            ],
        );
        tool(
            "umoci",
            &[
                "insert",
                "--rootless",
                "--image",
                &name,
                "--whiteout",
                "/etc/gone",
            ],
        );
        let config = [
            "--config.env",
            "GREETING=hello",
            "--config.entrypoint",
            "/bin/sh",
            "--config.cmd",
            "-c",
            "--config.cmd",
            "echo default",
        ];
        layout.configure(&config);
        layout
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Changes the configuration of the image, with flags of umoci.
    pub(crate) fn configure(&self, flags: &[&str]) {
        let name = format!("{}:small", text(&self.path("oci")));
        tool(
            "umoci",
            &[&["config", "--image", &name][..], flags].concat(),
        );
    }

    /// The image in the layout, as skopeo names it.
    pub(crate) fn source(&self) -> String {
        format!("oci:{}:small", text(&self.path("oci")))
    }

    /// The same as `docker save` writes it, where everybody can read it.
    pub(crate) fn saved(&self) -> PathBuf {
        let path = self.path("saved.tar");
        let to = format!("docker-archive:{}:small:1", text(&path));
        tool("skopeo", &["copy", "--quiet", &self.source(), &to]);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.directory.path(), open).expect("opened");
        path
    }
}

/// Debian's docker-registry on the loopback.
pub(crate) struct Registry {
    pub(crate) port: u16,
    process: Child,
    _storage: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start() -> Registry {
        Registry::with("")
    }

    /// One that only `ann` with the password `secret word` can use.
    pub(crate) fn with_login() -> Registry {
        Registry::with("auth:\n  htpasswd:\n    realm: test\n    path: PLACE/users\n")
    }

    fn with(more: &str) -> Registry {
        let storage = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let config = storage.path().join("config.yml");
        let place = text(storage.path());
        // `secret word`, by bcrypt.
        let user = "ann:$2b$04$6U7DaZUHnlbyFgqOcA8yCuxSgXZFL6vm3gOAiv9ZGqjGmH13UfnTa\n";
        fs::write(storage.path().join("users"), user).expect("written");
        let settings = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {place}\nhttp:\n  addr: 127.0.0.1:{port}\n{}",
            more.replace("PLACE", place)
        );
        fs::write(&config, settings).expect("written");
        let mut process = Command::new("docker-registry")
            .args(["serve", text(&config)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry");
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                process.try_wait().expect("waited").is_none(),
                "docker-registry ended"
            );
            assert!(
                begun.elapsed() < DEADLINE,
                "docker-registry does not listen"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Registry {
            port,
            process,
            _storage: storage,
        }
    }

    pub(crate) fn image(&self) -> String {
        format!("{}/team/small:1", self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn push(&self, layout: &Layout) {
        let to = format!("docker://{}", self.image());
        tool(
            "skopeo",
            &[
                "copy",
                "--quiet",
                "--dest-tls-verify=false",
                "--dest-creds",
                "ann:secret word",
                &layout.source(),
                &to,
            ],
        );
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What is left in a part of the store.
pub(crate) fn left(stage: &Stage, part: &str) -> usize {
    let path = stage.state().join("ironcage/images").join(part);
    fs::read_dir(path).map_or(0, |entries| entries.count())
}
