//! WebAssembly commands in cages: what they are given, what they are not, and how they end.

use ironcage_tests::{Running, Stage, both, either};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);
const WASM: [&str; 3] = ["-q", "--isolation", "wasm"];

/// A WASI command. It opens its argument for reading and copies up to 64 KiB to its output; with a second
/// argument it makes that file and writes the same there. It exits with WASI's error number.
const COPY: &str = r#"(module
    (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_prestat_dir_name" (func $name (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 8)
    ;; 0 argc, 4 size, 8 iovec, 16 count, 20 descriptor, 64 argv, 1024 texts, 8192 a preopen's name, 65536 buffer
    (func $length (param $at i32) (result i32) (local $n i32)
        (block $end (loop $more
            (br_if $end (i32.eqz (i32.load8_u (i32.add (local.get $at) (local.get $n)))))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br $more)))
        (local.get $n))
    (func $must (param $error i32) (if (local.get $error) (then (call $exit (local.get $error)))))
    ;; Opens a path below the preopen whose name is its beginning; a relative one below the first.
    (func $reach (param $path i32) (param $flags i32) (param $rights i64) (result i32)
        (local $fd i32) (local $size i32) (local $i i32)
        (if (i32.ne (i32.load8_u (local.get $path)) (i32.const 47)) (then
            (return (call $open (i32.const 3) (i32.const 1) (local.get $path) (call $length (local.get $path))
                (local.get $flags) (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 20)))))
        (local.set $fd (i32.const 4))
        (block $none (loop $next
            (br_if $none (call $prestat (local.get $fd) (i32.const 32)))
            (local.set $size (i32.load (i32.const 36)))
            (call $must (call $name (local.get $fd) (i32.const 8192) (local.get $size)))
            (local.set $i (i32.const 0))
            (block $differs
                (loop $compare
                    (if (i32.lt_u (local.get $i) (local.get $size)) (then
                        (br_if $differs (i32.ne
                            (i32.load8_u (i32.add (local.get $path) (local.get $i)))
                            (i32.load8_u (i32.add (i32.const 8192) (local.get $i)))))
                        (local.set $i (i32.add (local.get $i) (i32.const 1)))
                        (br $compare))))
                (br_if $differs (i32.ne (i32.load8_u (i32.add (local.get $path) (local.get $size))) (i32.const 47)))
                (local.set $path (i32.add (local.get $path) (i32.add (local.get $size) (i32.const 1))))
                (return (call $open (local.get $fd) (i32.const 1) (local.get $path) (call $length (local.get $path))
                    (local.get $flags) (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 20))))
            (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
            (br $next)))
        (i32.const 76))
    (func (export "_start") (local $n i32)
        (call $must (call $sizes (i32.const 0) (i32.const 4)))
        (call $must (call $args (i32.const 64) (i32.const 1024)))
        (call $must (call $reach (i32.load (i32.const 68)) (i32.const 0) (i64.const 2)))
        (i32.store (i32.const 8) (i32.const 65536))
        (i32.store (i32.const 12) (i32.const 65536))
        (call $must (call $read (i32.load (i32.const 20)) (i32.const 8) (i32.const 1) (i32.const 16)))
        (i32.store (i32.const 12) (i32.load (i32.const 16)))
        (call $must (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 16)))
        (if (i32.gt_u (i32.load (i32.const 0)) (i32.const 2)) (then
            (call $must (call $reach (i32.load (i32.const 72)) (i32.const 1) (i64.const 64)))
            (call $must (call $write (i32.load (i32.const 20)) (i32.const 8) (i32.const 1) (i32.const 16)))))))"#;

/// WASI's error number for a path that no directory was given for.
const NOT_CAPABLE: i32 = 76;

fn build(stage: &Stage, name: &str, text: &str) {
    let bytes = wat::parse_str(text).expect("a module");
    stage.write(stage.project().join(name), bytes);
}

both! {
    fn a_command_reads_and_writes_its_workspace_and_nothing_else(stage) {
        build(stage, "copy.wasm", COPY);
        stage.write(stage.project().join("input"), "canary\n");
        let ran = stage.run(&WASM, &["copy.wasm", "input", "output"]).ok();
        assert_eq!(ran.stdout(), "canary\n");
        assert_eq!(stage.read("output"), None, "copy-on-write");
        let diff = Running::start(&mut stage.ironcage(["diff", "--name-only"])).finish(DEADLINE).ok();
        assert_eq!(diff.stdout().trim(), "output");
        // The cage has it, and a native command reads it; a WebAssembly one is not given the system.
        stage.run(&["-q"], &["cat", "/etc/passwd"]).ok();
        assert_eq!(stage.run(&WASM, &["copy.wasm", "/etc/passwd"]).code(), NOT_CAPABLE);
        assert_ne!(stage.run(&WASM, &["copy.wasm", "../../../../etc/passwd"]).code(), 0);
        // A path of the policy is given, by its own name.
        let data = stage.aside().join("data");
        stage.mkdir(&data);
        stage.write(data.join("file"), "more\n");
        let (data, file) = (data.display().to_string(), data.join("file").display().to_string());
        assert_ne!(stage.run(&WASM, &["copy.wasm", &file]).code(), 0, "not in the view");
        let flags = [&WASM[..], &["-r", &data]].concat();
        assert_eq!(stage.run(&flags, &["copy.wasm", &file]).ok().stdout(), "more\n");
        assert_ne!(stage.run(&flags, &["copy.wasm", &file, &format!("{data}/new")]).code(), 0, "readable only");
    }
}

either! {
    fn what_is_not_webassembly_is_refused_and_says_so(stage) {
        let native = stage.run(&WASM, &["/bin/true"]);
        assert_eq!(native.code(), 126);
        assert!(native.stderr.contains("not a WebAssembly file"), "{native:?}");
        assert_eq!(stage.run(&WASM, &["absent.wasm"]).code(), 127);
        build(stage, "exit.wasm", r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1) (func (export "_start") (call $exit (i32.const 42))))"#);
        assert_eq!(stage.run(&WASM, &["exit.wasm"]).code(), 42);
        let refused = stage.run(&[&WASM[..], &["--cap", "CAP_NET_RAW"]].concat(), &["exit.wasm"]);
        assert_eq!(refused.code(), 125);
    }

    fn fuel_and_time_end_a_command_that_does_not_end(stage) {
        build(stage, "endless.wasm", r#"(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))"#);
        let fuel = stage.run(&[&WASM[..], &["--fuel", "1000000"]].concat(), &["endless.wasm"]);
        assert_eq!(fuel.code(), 134);
        assert!(fuel.stderr.contains("limits.fuel"), "{fuel:?}");
        assert_eq!(stage.run(&[&WASM[..], &["--time", "2s"]].concat(), &["endless.wasm"]).code(), 124);
    }
}
