use super::*;
use std::fs;

fn settings() -> WasmSettings {
    WasmSettings {
        directories: Vec::new(),
        network: false,
        memory: 16 * 1024 * 1024,
        fuel: None,
    }
}

/// Runs a core module that is given as text.
fn run_text(settings: &WasmSettings, text: &str) -> Result<u8, RunError> {
    run_bytes(settings, &wat::parse_str(text).unwrap())
}

fn run_bytes(settings: &WasmSettings, bytes: &[u8]) -> Result<u8, RunError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("command.wasm");
    fs::write(&path, bytes).unwrap();
    run(settings, vec![path.into()])
}

const EXIT: &str = r#"(module
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func (export "_start") (call $exit (i32.const 7))))"#;

#[test]
fn the_exit_status_is_the_commands() {
    assert_eq!(run_text(&settings(), EXIT).unwrap(), 7);
    let nothing = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    assert_eq!(run_text(&settings(), nothing).unwrap(), 0);
}

#[test]
fn a_component_runs_as_well() {
    let fails = r#"(component
        (core module $m (func (export "run") (result i32) (i32.const 1)))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $api (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $api)))"#;
    assert_eq!(run_text(&settings(), fails).unwrap(), 1);
    let works = fails.replace("(i32.const 1)", "(i32.const 0)");
    assert_eq!(run_text(&settings(), &works).unwrap(), 0);
}

#[test]
fn an_endless_command_ends_when_its_fuel_is_used_up() {
    let endless = r#"(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))"#;
    let limited = WasmSettings {
        fuel: Some(10_000),
        ..settings()
    };
    let error = run_text(&limited, endless).unwrap_err();
    assert!(matches!(error, RunError::Fuel(10_000)), "{error}");
    assert_eq!(error.status(), 134);
    assert_eq!(run_text(&limited, EXIT).unwrap(), 7, "enough for this one");
}

#[test]
fn memory_beyond_the_limit_is_refused_and_the_command_is_told() {
    // Exits with 1 if it gets 100 more pages (6.4 MB), with 0 if not.
    let grow = r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "_start")
            (call $exit (i32.ne (memory.grow (i32.const 100)) (i32.const -1)))))"#;
    assert_eq!(run_text(&settings(), grow).unwrap(), 1);
    let little = WasmSettings {
        memory: 1024 * 1024,
        ..settings()
    };
    assert_eq!(run_text(&little, grow).unwrap(), 0);
}

#[test]
fn what_is_no_command_is_refused_by_name() {
    let native = run_bytes(&settings(), b"\x7fELF\x02\x01\x01\0\0\0").unwrap_err();
    assert!(matches!(native, RunError::NotWasm(_)), "{native}");
    let library = run_text(&settings(), r#"(module (func (export "add")))"#).unwrap_err();
    assert!(matches!(library, RunError::NoStart(_)), "{library}");
    let broken = run_bytes(&settings(), b"\0asm\x01\0\0\0\xff\xff").unwrap_err();
    assert!(matches!(broken, RunError::Invalid { .. }), "{broken}");
    let unknown = r#"(module (import "host" "system" (func)) (func (export "_start")))"#;
    let unknown = run_text(&settings(), unknown).unwrap_err();
    assert!(unknown.to_string().contains("host"), "{unknown}");
    for error in [native, library, broken, unknown] {
        assert_eq!(error.status(), 126);
    }
    let absent = run(&settings(), vec!["/nowhere/x.wasm".into()]).unwrap_err();
    assert_eq!(absent.status(), 127);
}

#[test]
fn a_trap_has_the_status_of_an_abort() {
    let trap = r#"(module (func (export "_start") unreachable))"#;
    let error = run_text(&settings(), trap).unwrap_err();
    assert!(matches!(error, RunError::Trap(_)), "{error}");
    assert_eq!(error.status(), 134);
}

/// A command that opens FILE below its preopen number N for writing, and exits with WASI's error.
fn opens(preopen: u32, file: &str) -> String {
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (import "wasi_snapshot_preview1" "path_open"
            (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 64) "{file}")
        (func (export "_start")
            (call $exit (call $open (i32.const {preopen}) (i32.const 1) (i32.const 64) (i32.const {length})
                (i32.const 1) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 0)))))"#,
        length = file.len()
    )
}

#[test]
fn only_given_directories_can_be_opened() {
    let stage = tempfile::tempdir().unwrap();
    let given = stage.path().join("given");
    fs::create_dir(&given).unwrap();
    fs::write(stage.path().join("secret"), "x").unwrap();
    std::os::unix::fs::symlink(stage.path(), given.join("out")).unwrap();
    let settings = WasmSettings {
        directories: vec![given.clone(), stage.path().join("absent")],
        ..settings()
    };
    // 3 is the working directory, 4 the first that is given; the absent one has no number.
    assert_eq!(run_text(&settings, &opens(4, "new")).unwrap(), 0);
    assert!(given.join("new").exists());
    for way_out in ["../secret", "out/secret", "/etc/passwd"] {
        let status = run_text(&settings, &opens(4, way_out)).unwrap();
        assert_ne!(status, 0, "{way_out}");
    }
    assert_ne!(run_text(&settings, &opens(5, "new")).unwrap(), 0);
}
