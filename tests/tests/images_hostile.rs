//! Images that attack who loads them: a corpus that is made here. Each attack has a twin that is allowed, which differs
//! in the attack alone. Nothing of an attack is outside of the store, and nothing of a refused image is in it.

use crate::image_fixtures::{DEADLINE, image, left, text};
use ironcage_tests::{Running, Stage, both, either};
use std::fs;
use std::path::Path;

/// Writes the archives of the corpus: `NAME.tar`, and `NAME.twin.tar` for what is allowed. The first argument is the
/// directory for them, the second the one with a canary that attacks are about.
const CORPUS: &str = r#"
import copy, gzip, hashlib, io, json, os, sys, tarfile
out, aside = sys.argv[1:3]
FILE, LINK, HARD, DIR, CHAR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE
busybox = open("/bin/busybox", "rb").read()

def layer(entries):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o4755
            if kind in (LINK, HARD):
                entry.linkname, content = content, b""
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()

def sha(data):
    return hashlib.sha256(data).hexdigest()

def layout(name, layers, compress=lambda data: data, **change):
    """An OCI layout as an archive. `change` edits its documents before they are written."""
    blobs = {}
    def add(data):
        blobs[sha(data)] = data
        return {"digest": "sha256:" + sha(data), "size": len(data)}
    same = lambda document: document
    packed = [compress(data) for data in layers]
    config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/true"]},
              "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha(data) for data in layers]}}
    config = json.dumps(change.get("config", same)(config)).encode()
    manifest = {"schemaVersion": 2,
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **add(config)},
                "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **add(data)} for data in packed]}
    manifest = json.dumps(change.get("manifest", same)(manifest)).encode()
    index = {"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", **add(manifest),
             "annotations": {"org.opencontainers.image.ref.name": "corpus:1"}}]}
    index = change.get("index", same)(index)
    files = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", json.dumps(index).encode())]
    files += [("blobs/sha256/" + name, data) for name, data in change.get("blobs", same)(blobs).items()]
    write(name, files)

def write(name, files):
    with tarfile.open(os.path.join(out, name + ".tar"), "w") as archive:
        for path, data in files:
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))

base = [("bin", DIR, b""), ("bin/busybox", FILE, busybox), ("bin/true", LINK, "busybox"), ("etc/passwd", FILE, b"root:x:0:0::/:/bin/sh\n")]
evil = b"overwritten"

def entries(name, bad, good):
    layout(name, [layer(base + bad)])
    layout(name + ".twin", [layer(base + good)])

up = "../" * 40
entries("traversal", [(up + aside[1:] + "/canary", FILE, evil)], [(aside[1:] + "/canary", FILE, evil)])
entries("traversal-inside", [("srv/../../../../canary", FILE, evil)], [("srv/canary", FILE, evil)])
entries("hard-link-out", [("out", HARD, up + aside[1:] + "/canary")], [("out", HARD, "bin/busybox")])
entries("hard-link-absolute", [("out", HARD, aside + "/canary")], [("out", HARD, "/bin/busybox")])
entries("hard-link-to-nothing", [("out", HARD, "none")], [("out", HARD, "bin/true")])
entries("delete-parent", [("srv/.wh...", FILE, b"")], [("srv/.wh.x", FILE, b"")])
entries("delete-nothing", [("srv/.wh.", FILE, b"")], [("srv/.wh.y", FILE, b"")])
entries("delete-a-deletion", [("srv/.wh..wh.x", FILE, b"")], [("srv/.wh..x", FILE, b"")])
entries("unknown-type", [("srv/odd", b"V", b"")], [("srv/odd", FILE, b"")])
def linked_etc(target):
    return [layer([item for item in base if not item[0].startswith("etc")] + [("etc", *target)])]
layout("linked-etc", linked_etc((LINK, aside)))
layout("linked-etc.twin", linked_etc((DIR, b"")))
deep = lambda levels: [("/".join(["d"] * levels), DIR, b"")]
entries("deep", deep(300), deep(200))
entries("long-name", [("n" * (2 << 20), FILE, b"")], [("n" * 200, FILE, b"")])

# Writes through links. In a layer they lead at most to its top: to nothing, or to a directory of the layer.
for name, target in [("link-out", aside), ("link-up", up + aside[1:]), ("link-proc", "/proc/self/cwd")]:
    way = [("way", LINK, target), ("way/canary", FILE, evil)]
    entries(name, way, [("way", DIR, b""), ("way/canary", FILE, evil)])
    entries("contained-" + name, [(aside[1:], DIR, b""), ("proc/self/cwd", DIR, b"")] + way, [("way/canary", FILE, evil)])
entries("directory-then-link", [("way", DIR, b""), ("way", LINK, aside), ("way/canary", FILE, evil)], [("way", DIR, b""), ("way/canary", FILE, evil)])
entries("contained-file-then-directory", [("way", FILE, b""), ("way", DIR, b""), ("way/canary", FILE, evil)], [("way", DIR, b"")])
entries("contained-twice", [("twice", FILE, b"first"), ("twice", LINK, aside + "/canary"), ("twice", FILE, evil)], [("twice", FILE, evil)])
entries("contained-device", [("dev/null", CHAR, b""), ("bin/zero", CHAR, b"")], [("bin/zero", FILE, b"")])
layout("contained-whiteouts", [layer(base), layer([(".wh..wh..opq", FILE, b""), (".wh.bin", FILE, b""), ("bin/.wh..wh..opq", FILE, b""), (".wh.etc", FILE, b""), (".wh.none", FILE, b"")] + base)])
layout("contained-whiteouts.twin", [layer(base), layer([("srv", DIR, b"")])])
layout("contained-layer-twice", [layer(base), layer(base)])
layout("contained-layer-twice.twin", [layer(base)])
link = layer([("way", LINK, aside)])
layout("contained-link-below", [layer(base), link, layer([("way/canary", FILE, evil)])])
layout("contained-link-below.twin", [layer(base), layer([("way/canary", FILE, evil)])])

# Documents.
def document(name, **bad):
    layout(name, [layer(base)], **bad)
    layout(name + ".twin", [layer(base)])

def edit(change):
    def edited(document):
        document = copy.deepcopy(document)
        change(document)
        return document
    return edited
wrong = "sha256:" + "0" * 64
document("bad-layer-id", config=edit(lambda config: config["rootfs"].update(diff_ids=[wrong])))
document("missing-layer", manifest=edit(lambda manifest: manifest["layers"][0].update(digest=wrong)))
document("digest-is-a-path", manifest=edit(lambda manifest: manifest["layers"][0].update(digest="sha256:" + up + aside[1:] + "/canary")))
document("digest-of-another-kind", manifest=edit(lambda manifest: manifest["layers"][0].update(digest="sha512:" + "0" * 128)))
def spoiled(blobs):
    return {name: data[:-1] + b"x" if data[:1] != b"{" else data for name, data in blobs.items()}
document("bad-layer", blobs=spoiled)
document("bad-config", blobs=lambda blobs: {name: data.replace(b"amd64", b"arm64") for name, data in blobs.items()})
document("bad-manifest", index=edit(lambda index: index["manifests"][0].update(digest=wrong)))
document("more-ids-than-layers", config=edit(lambda config: config["rootfs"]["diff_ids"].append(wrong)))
document("no-layers", manifest=edit(lambda manifest: manifest.update(layers=[])), config=edit(lambda config: config["rootfs"].update(diff_ids=[])))
document("size-of-exabytes", manifest=edit(lambda manifest: manifest["layers"][0].update(size=1 << 63)))
document("negative-size", manifest=edit(lambda manifest: manifest["layers"][0].update(size=-1)))
document("layer-is-a-zip", manifest=edit(lambda manifest: manifest["layers"][0].update(mediaType="application/zip")))
document("a-chart", manifest=edit(lambda manifest: manifest["config"].update(mediaType="application/vnd.cncf.helm.config.v1+json")))
document("another-schema", manifest=edit(lambda manifest: manifest.update(schemaVersion=3)))
document("no-images", index=edit(lambda index: index.update(manifests=[])))
document("another-platform", index=edit(lambda index: index["manifests"][0].update(digest=wrong, platform={"os": "plan9", "architecture": "mips"})))
layout("129-layers", [layer(base)] * 129)
layout("129-layers.twin", [layer(base)] * 128)
layout("many-images", [layer(base)], index=edit(lambda index: index.update(manifests=index["manifests"] * 1001)))
layout("many-images.twin", [layer(base)], index=edit(lambda index: index.update(manifests=index["manifests"] * 3)))

def docker(name, tags, config="config.json", data=layer(base)):
    text = json.dumps({"rootfs": {"diff_ids": ["sha256:" + sha(data)]}, "config": {"Cmd": ["/bin/true"]}}).encode()
    listed = [{"Config": config, "RepoTags": tags, "Layers": ["layer.tar"]}]
    write(name, [("manifest.json", json.dumps(listed).encode()), ("config.json", text), ("layer.tar", data)])
docker("many-names", ["many:%d" % number for number in range(1001)] + ["corpus:1"])
docker("many-names.twin", ["corpus:1"])
docker("config-outside", ["corpus:1"], up + "etc/passwd")
docker("config-outside.twin", ["corpus:1"], "./config.json")
write("not-an-image", [("readme", b"text")])
docker("not-an-image.twin", ["corpus:1"])
open(os.path.join(out, "noise.tar"), "wb").write(os.urandom(100000))
docker("noise.twin", ["corpus:1"])
"#;

/// What an attack leads to, by a part of its name.
const REFUSED: &[(&str, &str)] = &[
    ("traversal", "leads out of the layer"),
    ("traversal-inside", "leads out of the layer"),
    ("hard-link-out", "leads out of the layer"),
    ("hard-link-absolute", "cannot link"),
    ("hard-link-to-nothing", "cannot link"),
    ("delete-parent", "deletes nothing"),
    ("delete-nothing", "deletes nothing"),
    ("delete-a-deletion", "deletes nothing"),
    ("unknown-type", "type is not allowed"),
    ("linked-etc", "its /etc is not a directory"),
    ("deep", "deeper than 256"),
    ("long-name", "mebibyte of headers"),
    ("link-out", "a link to nothing"),
    ("link-up", "a link to nothing"),
    ("link-proc", "a link to nothing"),
    ("directory-then-link", "a link to nothing"),
    ("bad-layer-id", "after decompression"),
    ("missing-layer", "is missing"),
    ("digest-is-a-path", "invalid digest"),
    ("digest-of-another-kind", "invalid digest"),
    ("bad-layer", "expected sha256"),
    ("bad-config", "expected sha256"),
    ("bad-manifest", "is missing"),
    ("more-ids-than-layers", "its manifest has 1 layers"),
    ("no-layers", "0 layers"),
    ("size-of-exabytes", "at most"),
    ("negative-size", "cannot read the manifest"),
    ("layer-is-a-zip", "application/zip"),
    ("a-chart", "not a container image"),
    ("another-schema", "schema version 3"),
    ("no-images", "neither an OCI layout"),
    ("another-platform", "is missing"),
    ("129-layers", "129 layers"),
    ("many-images", "1001 images"),
    ("many-names", "1002 names"),
    ("config-outside", "is missing"),
    ("not-an-image", "neither an OCI layout"),
    ("noise", "neither an OCI layout"),
];

/// Attacks that an image may try: they reach nothing.
const CONTAINED: &[&str] = &[
    "link-out",
    "link-up",
    "link-proc",
    "file-then-directory",
    "twice",
    "device",
    "whiteouts",
    "layer-twice",
    "link-below",
];

const PARTS: [&str; 7] = [
    "images",
    "names",
    "layers",
    "roots",
    "blobs",
    "partial",
    "temporary",
];

fn load(stage: &Stage, corpus: &Path, name: &str) -> ironcage_tests::Ran {
    let path = corpus.join(format!("{name}.tar"));
    image(stage, &["load", "--name", "corpus:1", text(&path)])
}

/// The image works, and goes without a rest.
fn works(stage: &Stage, name: &str) {
    let ran = stage.run(&["-q", "--image", "corpus:1"], &["/bin/busybox", "true"]);
    assert_eq!(ran.code(), 0, "{name}: {ran:?}");
    image(stage, &["rm", "corpus:1"]).ok();
    nothing_left(stage, name);
}

fn nothing_left(stage: &Stage, name: &str) {
    // What a load wrote before it was refused is not visible, and the next removal takes it away.
    for part in ["images", "names", "roots"] {
        assert_eq!(left(stage, part), 0, "{name}: {part}");
    }
    image(stage, &["prune"]).ok();
    for part in PARTS {
        assert_eq!(left(stage, part), 0, "{name}: {part}");
    }
}

both! {
    fn an_attack_is_refused_or_contained_and_its_twin_works(stage) {
        let (corpus, aside) = (stage.base().join("corpus"), stage.aside());
        stage.mkdir(&corpus);
        stage.write(aside.join("canary"), "untouched");
        let mut python = stage.outside("python3");
        Running::start(python.args(["-c", CORPUS, text(&corpus), text(&aside)])).finish(DEADLINE).ok();
        let before = fs::read_dir(&aside).expect("aside").count();
        let untouched = |name: &str| {
            assert_eq!(fs::read_to_string(aside.join("canary")).expect("the canary"), "untouched", "{name}");
            assert_eq!(fs::read_dir(&aside).expect("aside").count(), before, "{name}");
            assert!(!stage.base().join("canary").exists() && !stage.project().join("canary").exists(), "{name}");
        };
        for (name, why) in REFUSED {
            let ran = load(stage, &corpus, name);
            assert!(ran.code() == 125 && ran.stderr.contains(why), "{name}: {ran:?}");
            untouched(name);
            nothing_left(stage, name);
            load(stage, &corpus, &format!("{name}.twin")).ok();
            works(stage, name);
        }
        for name in CONTAINED.iter().map(|name| format!("contained-{name}")) {
            for name in [name.clone(), format!("{name}.twin")] {
                load(stage, &corpus, &name).ok();
                untouched(&name);
                works(stage, &name);
                untouched(&name);
            }
        }
    }
}

/// A file of zeros, and its twin of the same size that does not compress.
const BOMB: &str = r#"
import gzip, hashlib, io, json, os, sys, tarfile
out, size = sys.argv[1], int(sys.argv[2])
class Zeros:
    def read(self, count): return bytes(count)
with open(os.path.join(out, "bomb.tar.gz"), "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
    entry = tarfile.TarInfo("zeros"); entry.size = size; archive.addfile(entry, Zeros())
"#;

either! {
    fn a_bomb_stops_at_its_limit(stage) {
        let corpus = stage.base().join("corpus");
        stage.mkdir(&corpus);
        let mut python = stage.outside("python3");
        let size = (3_u64 << 30).to_string();
        Running::start(python.args(["-c", BOMB, text(&corpus), &size])).finish(DEADLINE).ok();
        // As the archive itself, before anything of an image is known.
        let path = corpus.join("bomb.tar.gz");
        image(stage, &["load", text(&path)]).ended(125).says("MiB after decompression");
        nothing_left(stage, "bomb");
    }
}
