//! Registries: credentials from where Docker and podman keep them, mirrors, downloads that break, and registries that lie.

use crate::image_fixtures::{DEADLINE, Layout, Registry, image, left};
use ironcage_tests::{Exit, Ran, Running, Stage, both, either, wait_until};
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// `ann:secret word` in base64, and with another password.
const LOGIN: &str = "YW5uOnNlY3JldCB3b3Jk";
const WRONG: &str = "YW5uOm90aGVyIHdvcmQ=";

fn pull(stage: &Stage, name: &str, env: &[(&str, String)]) -> Ran {
    let mut command = stage.ironcage(["image", "pull", "--insecure", name]);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    Running::start(&mut command).finish(DEADLINE)
}

fn executable(stage: &Stage, path: &std::path::Path, script: &str) {
    stage.write(path, script);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

both! {
    fn credentials_come_from_docker_podman_and_their_helpers(stage) {
        let (layout, registry) = (Layout::new(), Registry::with_login());
        registry.push(&layout);
        let (name, address) = (registry.image(), registry.address());
        let docker = stage.base().join("docker");
        let place = |config: &str| {
            stage.write(docker.join("config.json"), config);
            vec![("DOCKER_CONFIG", docker.display().to_string())]
        };
        stage.mkdir(&docker);
        pull(stage, &name, &[]).ended(125).says(&format!("docker login {address}"));
        let refused = |config: &str, why: &str| {
            let ran = pull(stage, &name, &place(config)).ended(125).says(why);
            assert!(!ran.stderr.contains("secret") && !ran.stderr.contains(LOGIN), "{ran:?}");
        };
        let with = |auth: &str| format!(r#"{{"auths":{{"{address}":{{"auth":"{auth}"}}}}}}"#);
        refused(&with(WRONG), "cannot pull");
        // A login of another registry is not sent to this one.
        refused(&format!(r#"{{"auths":{{"registry.example":{{"auth":"{LOGIN}"}}}}}}"#), "docker login");
        refused(&with("%%%"), "user:password in base64");
        refused(&format!(r#"{{"auths":{{"{address}":{{"identitytoken":"secret"}}}}}}"#), "identity token");
        let taken = |env: &[(&str, String)]| {
            pull(stage, &name, env).ok();
            image(stage, &["rm", &name]).ok();
        };
        taken(&place(&with(LOGIN)));
        // Without a variable, from the home directory.
        stage.mkdir(stage.home().join(".docker"));
        stage.write(stage.home().join(".docker/config.json"), with(LOGIN));
        taken(&[]);
        fs::remove_file(stage.home().join(".docker/config.json")).expect("removed");
        let podman = stage.base().join("auth.json");
        stage.write(&podman, with(LOGIN));
        taken(&[("REGISTRY_AUTH_FILE", podman.display().to_string())]);
        // Helpers, by registry and for all; one that fails is named.
        let bin = stage.base().join("helpers");
        stage.mkdir(&bin);
        let answer = "#!/bin/sh\nread registry; [ \"$1\" = get ] && echo \"$registry\" >asked || exit 1\n\
                      echo '{\"Username\":\"ann\",\"Secret\":\"secret word\"}'\n";
        executable(stage, &bin.join("docker-credential-good"), &answer.replace(">asked", &format!(">{}/asked", bin.display())));
        executable(stage, &bin.join("docker-credential-bad"), "#!/bin/sh\necho secret; exit 3\n");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let with_path = |config: &str| [place(config), vec![("PATH", path.clone())]].concat();
        taken(&with_path(&format!(r#"{{"credHelpers":{{"{address}":"good"}}}}"#)));
        taken(&with_path(&format!(r#"{{"auths":{{"{address}":{{}}}},"credsStore":"good"}}"#)));
        assert_eq!(fs::read_to_string(bin.join("asked")).expect("asked").trim(), address);
        for (helper, why) in [("bad", "docker-credential-bad ended with"), ("none", "cannot run docker-credential-none"), ("../sh", "invalid credential helper")] {
            let config = format!(r#"{{"credHelpers":{{"{address}":"{helper}"}}}}"#);
            let ran = pull(stage, &name, &with_path(&config)).ended(125).says(why);
            assert!(!ran.stderr.contains("secret"), "{ran:?}");
        }
    }
}

either! {
    fn a_mirror_is_asked_first_and_without_tls_on_this_machine_only(stage) {
        let (layout, registry) = (Layout::new(), Registry::start());
        registry.push(&layout);
        let file = stage.home().join(".config/containers/registries.conf");
        stage.mkdir(stage.home().join(".config"));
        stage.mkdir(stage.home().join(".config/containers"));
        let mirror = |locations: &[(&str, bool)]| {
            let mut text = "[[registry]]\nlocation = \"registry.invalid/team\"\n".to_owned();
            for (location, insecure) in locations {
                text += &format!("[[registry.mirror]]\nlocation = \"{location}\"\ninsecure = {insecure}\n");
            }
            stage.write(&file, text);
        };
        let own = format!("{}/team", registry.address());
        let name = "registry.invalid/team/small:1";
        let pull = || image(stage, &["pull", name]);
        mirror(&[]);
        pull().ended(125).says("cannot pull registry.invalid/team/small:1");
        mirror(&[(&own, false)]);
        pull().ended(125).says("mirror 127.0.0.1");
        mirror(&[("mirror.invalid/team", true)]);
        pull().ended(125).says("not on this machine");
        // The first of two does not answer.
        mirror(&[("127.0.0.1:1/team", true), (&own, true)]);
        pull().ok().says("mirror 127.0.0.1:1");
        let ran = stage.run(&["-q", "--image", name], &["-c", "cat /etc/release"]);
        assert_eq!(ran.ok().stdout(), "upper\n");
        stage.write(&file, "[[registry]]\nlocation = \"registry.invalid\"\nblocked = true\n");
        image(stage, &["pull", "registry.invalid/team/other:1"]).ended(125).says("blocks its registry");
    }

    fn a_download_that_breaks_continues_where_it_ended(stage) {
        let (layout, registry) = (Layout::new(), Registry::start());
        registry.push(&layout);
        let wire = Wire::to(registry.port);
        let name = format!("127.0.0.1:{}/team/small:1", wire.port);
        // The connection breaks twice; the next one asks for the rest.
        wire.breaks.store(2, Ordering::SeqCst);
        image(stage, &["pull", "--insecure", &name]).ok();
        let ranges = wire.ranges();
        assert_eq!(ranges.len(), 2, "{ranges:?}");
        assert!(ranges.iter().all(|range| *range > 0), "{ranges:?}");
        image(stage, &["rm", &name]).ok();
        // A kill in the middle: the next pull asks for the rest.
        wire.stalls.store(true, Ordering::SeqCst);
        let running = Running::start(&mut stage.ironcage(["image", "pull", "--insecure", &name]));
        let partial = stage.state().join("ironcage/images/partial");
        let begun = || {
            if !wire.stalled.load(Ordering::SeqCst) {
                return false;
            }
            let mut files = fs::read_dir(&partial).into_iter().flatten().flatten();
            files.any(|file| file.metadata().is_ok_and(|found| found.len() > 100_000))
        };
        assert!(wait_until(DEADLINE, begun), "nothing was downloaded");
        running.signal(Signal::KILL);
        assert_eq!(running.finish(DEADLINE).exit, Exit::Signal(9));
        wire.stalls.store(false, Ordering::SeqCst);
        image(stage, &["pull", "--insecure", &name]).ok();
        assert_eq!(wire.ranges().len(), 3, "{:?}", wire.ranges());
        let ran = stage.run(&["-q", "--image", &name], &["-c", "cat /etc/release"]);
        assert_eq!(ran.ok().stdout(), "upper\n");
        assert_eq!(left(stage, "partial"), 0);
    }
}

/// How much of an answer comes before its connection breaks.
const UNTIL_BREAK: usize = 2_000_000;

/// A way to a registry that breaks.
struct Wire {
    port: u16,
    /// How many long answers break.
    breaks: Arc<AtomicUsize>,
    /// Long answers come to no end.
    stalls: Arc<AtomicBool>,
    /// One did.
    stalled: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Wire {
    fn to(registry: u16) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let wire = Wire {
            port: listener.local_addr().expect("an address").port(),
            breaks: Arc::default(),
            stalls: Arc::default(),
            stalled: Arc::default(),
            requests: Arc::default(),
        };
        let (breaks, stalls) = (wire.breaks.clone(), wire.stalls.clone());
        let (stalled, requests) = (wire.stalled.clone(), wire.requests.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", registry)) else {
                    return;
                };
                let (breaks, stalls) = (breaks.clone(), stalls.clone());
                let (stalled, requests) = (stalled.clone(), requests.clone());
                thread::spawn(move || {
                    relay(client, server, &breaks, (&stalls, &stalled), &requests)
                });
            }
        });
        wire
    }

    /// Where each download continued.
    fn ranges(&self) -> Vec<u64> {
        let requests = self.requests.lock().expect("not poisoned").join("\n");
        let lines = requests.lines().filter_map(|line| {
            let line = line.to_lowercase();
            let range = line.strip_prefix("range: bytes=")?.to_owned();
            range.split('-').next()?.parse().ok()
        });
        lines.collect()
    }
}

fn relay(
    client: TcpStream,
    server: TcpStream,
    breaks: &AtomicUsize,
    (stalls, stalled): (&AtomicBool, &AtomicBool),
    requests: &Mutex<Vec<String>>,
) {
    let (Ok(mut from), Ok(mut to)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                requests.lock().expect("not poisoned").push(text);
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut answers, mut back) = (&server, &client);
        let (mut buffer, mut sent) = ([0; 16 * 1024], 0);
        while let Ok(read @ 1..) = answers.read(&mut buffer) {
            if sent + read > UNTIL_BREAK {
                if breaks
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    break;
                }
                if stalls.load(Ordering::SeqCst) {
                    stalled.store(true, Ordering::SeqCst);
                    // Until the client is gone.
                    let _ = wait_until(DEADLINE, || !stalls.load(Ordering::SeqCst));
                    break;
                }
            }
            if back.write_all(&buffer[..read]).is_err() {
                break;
            }
            sent += read;
        }
        let _ = (
            client.shutdown(Shutdown::Both),
            server.shutdown(Shutdown::Both),
        );
    });
}

/// A registry that answers what a test says.
struct Liar {
    port: u16,
    answers: Arc<Mutex<HashMap<String, Vec<u8>>>>,
}

impl Liar {
    fn start() -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answers: Arc<Mutex<HashMap<String, Vec<u8>>>> = Arc::default();
        let shared = answers.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let shared = shared.clone();
                thread::spawn(move || answer(&client, &shared));
            }
        });
        Liar { port, answers }
    }

    fn says(&self, path: &str, content: &[u8]) {
        let path = format!("/v2/liar/{path}");
        self.answers
            .lock()
            .expect("not poisoned")
            .insert(path, content.to_vec());
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}/liar:1", self.port)
    }
}

fn answer(mut client: &TcpStream, answers: &Mutex<HashMap<String, Vec<u8>>>) {
    let mut lines = BufReader::new(client).lines();
    while let Some(Ok(request)) = lines.next() {
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        while let Some(Ok(line)) = lines.next() {
            if line.is_empty() {
                break;
            }
        }
        let found = answers.lock().expect("not poisoned").get(&path).cloned();
        let (status, body) = match (found, path.as_str()) {
            (Some(body), _) => ("200 OK", body),
            (None, "/v2/") => ("200 OK", Vec::new()),
            (None, _) => ("404 Not Found", Vec::new()),
        };
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Type: {kind}\r\n\r\n",
            body.len()
        );
        if client
            .write_all(head.as_bytes())
            .and_then(|()| client.write_all(&body))
            .is_err()
        {
            return;
        }
    }
}

fn digest(content: &[u8]) -> String {
    let hex = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    format!("sha256:{hex}")
}

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

fn manifest(config: (&str, &[u8]), layer: (&str, &[u8], u64)) -> Vec<u8> {
    serde_json::json!({
        "schemaVersion": 2,
        "config": {"mediaType": config.0, "digest": digest(config.1), "size": config.1.len()},
        "layers": [{"mediaType": layer.0, "digest": digest(layer.1), "size": layer.2}],
    })
    .to_string()
    .into_bytes()
}

either! {
    fn a_registry_that_lies_leaves_nothing(stage) {
        let liar = Liar::start();
        // An archive of one empty directory.
        let mut layer = vec![0_u8; 1536];
        layer[..4].copy_from_slice(b"srv/");
        layer[100..107].copy_from_slice(b"0000755");
        layer[124..135].copy_from_slice(b"00000000000");
        layer[136..147].copy_from_slice(b"00000000000");
        layer[156] = b'5';
        let sum: u32 = layer[..512].iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        layer[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let config = serde_json::json!({"config": {}, "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}});
        let config = config.to_string().into_bytes();
        let blob = |content: &[u8]| format!("blobs/{}", digest(content));
        let size = layer.len() as u64;
        let good = manifest((CONFIG_TYPE, &config), (LAYER_TYPE, &layer, size));
        let clean = |what: &str| {
            for part in ["images", "names", "layers", "roots"] {
                assert_eq!(left(stage, part), 0, "{what}: {part}");
            }
        };
        let pull = |name: &str| image(stage, &["pull", "--insecure", name]);
        liar.says(&blob(&config), &config);
        // Content that is not what the manifest names, also in length.
        let mut other = layer.clone();
        other[0] = b'x';
        for (content, why) in [(other.clone(), "expected sha256"), ([&layer[..], b"more"].concat(), "sends more than"), (layer[..600].to_vec(), "Invalid digest")] {
            liar.says("manifests/1", &good);
            liar.says(&blob(&layer), &content);
            pull(&liar.name()).ended(125).says(why);
            clean(why);
            assert_eq!(left(stage, "layers"), 0);
            image(stage, &["prune"]).ok();
        }
        liar.says(&blob(&layer), &layer);
        // Manifests that are something else.
        let chart = manifest(("application/vnd.cncf.helm.config.v1+json", &config), (LAYER_TYPE, &layer, size));
        let zip = manifest((CONFIG_TYPE, &config), ("application/zip", &layer, size));
        let huge = manifest((CONFIG_TYPE, &config), (LAYER_TYPE, &layer, 1 << 50));
        let old = br#"{"schemaVersion":1,"config":{"digest":"x","size":1},"layers":[]}"#.to_vec();
        let mut index = serde_json::json!({"schemaVersion": 2, "manifests": []});
        let endless = br#"{"schemaVersion":2,"manifests":[{"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":1}]}"#.to_vec();
        index["manifests"] = serde_json::json!([{"digest": digest(&layer), "size": 1, "platform": {"os": "plan9", "architecture": "mips"}}]);
        for (content, why) in [
            (chart, "not a container image"),
            (zip, "media type `application/zip`"),
            (huge, "at most"),
            (old, "cannot pull"),
            (b"<html>".to_vec(), "cannot pull"),
            (vec![b' '; 5 << 20], "cannot pull"),
            (index.to_string().into_bytes(), "no manifest for linux/"),
            (endless, "cannot pull"),
        ] {
            liar.says("manifests/1", &content);
            pull(&liar.name()).ended(125).says(why);
            clean(why);
        }
        // A name with a digest is that content and no other.
        let pinned = format!("127.0.0.1:{}/liar@{}", liar.port, digest(&good));
        liar.says(&format!("manifests/{}", digest(&good)), &manifest((CONFIG_TYPE, &config), (LAYER_TYPE, &other, size)));
        pull(&pinned).ended(125);
        clean("pinned");
        // The arm that is allowed.
        liar.says(&format!("manifests/{}", digest(&good)), &good);
        pull(&pinned).ok();
        liar.says("manifests/1", &good);
        pull(&liar.name()).ok();
        assert_eq!(left(stage, "images"), 1);
    }
}
