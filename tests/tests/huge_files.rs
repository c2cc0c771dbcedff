//! Files that are larger than anything that is read into memory, and files that are mostly holes, from a cage to the
//! real tree.

use ironcage_tests::{Running, Stage, either};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);
/// Past what 32 bits count.
const FAR: u64 = 5 << 30;
const END: u64 = 6 << 30;

fn part(stage: &Stage, name: &str, at: u64) -> String {
    let file = File::open(stage.project().join(name)).expect(name);
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, at).expect("a part");
    String::from_utf8_lossy(&bytes).into_owned()
}

either! {
    fn large_files_and_holes_come_over_as_they_are(stage) {
        // One of the host's that is changed in its middle.
        stage.write(stage.project().join("there"), "begin!");
        let mut there = File::options().write(true).open(stage.project().join("there")).expect("a file");
        there.seek(SeekFrom::Start(FAR)).expect("a place");
        there.write_all(b"middle").expect("written");
        there.set_len(END).expect("a length");
        drop(there);
        let script = format!(
            "set -e; put() {{ printf \"$3\" | dd of=$1 bs=1 seek=$2 conv=notrunc status=none; }}
            put there {FAR} agents; put new {FAR} 'far  !'; truncate -s {END} new
            head -c 50000000 /dev/urandom > dense; sha256sum < dense; ls -s new there >&2"
        );
        let ran = stage.sh_with(&["-q", "--disk", "8G"], &script).ok();
        assert_eq!(part(stage, "there", FAR), "middle");
        let told = Running::start(&mut stage.ironcage(["diff"])).finish(DEADLINE).ok().stdout();
        assert!(told.contains("new") && told.contains("dense") && told.len() < 10_000, "{} bytes", told.len());
        Running::start(&mut stage.ironcage(["apply"])).finish(DEADLINE).ok();
        for name in ["new", "there"] {
            let metadata = fs::metadata(stage.project().join(name)).expect(name);
            assert_eq!(metadata.len(), END, "{name}");
            assert_eq!(part(stage, name, END - 6), "\0\0\0\0\0\0", "{name}");
            assert!(metadata.blocks() * 512 < 64 << 20, "{name} has {} blocks", metadata.blocks());
        }
        assert_eq!(part(stage, "there", 0), "begin!");
        assert_eq!(part(stage, "there", FAR), "agents");
        assert_eq!(part(stage, "new", FAR), "far  !");
        assert_eq!(stage.sh_outside("sha256sum < dense").ok().stdout(), ran.stdout());
        Running::start(&mut stage.ironcage(["diff"])).finish(DEADLINE).failed("no-pending-change");
    }
}
