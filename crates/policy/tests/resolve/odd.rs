//! Files with odd values, and files with a few bytes changed.

use super::Stage;
use proptest::prelude::*;

/// Values of the right type with odd content, and text changed at random.
fn odd_policy() -> impl Strategy<Value = String> {
    let keys = prop::sample::select(
        &[
            "extends",
            "workspace.mode",
            "workspace.unprotect",
            "files.read",
            "files.write",
            "files.hide",
            "env.pass",
            "env.set",
            "process.hostname",
            "process.root-inside",
            "process.capabilities",
            "syscalls.list",
            "syscalls.groups",
            "limits.memory",
            "limits.cpus",
            "limits.pids",
            "limits.disk",
            "limits.inodes",
            "limits.files",
            "limits.time",
            "limits.idle",
            "layers.require",
            "layers.allow-degraded",
        ][..],
    );
    let text = any::<String>().prop_map(|text| toml::Value::String(text).to_string());
    let value = prop_oneof![
        text.clone(),
        prop::collection::vec(text.clone(), 0..3)
            .prop_map(|items| format!("[{}]", items.join(", "))),
        (text.clone(), text).prop_map(|(name, value)| format!("{{ {name} = {value} }}")),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| toml::Value::Float(number).to_string()),
        any::<bool>().prop_map(|value| value.to_string()),
    ];
    prop::collection::vec((keys, value), 1..4).prop_map(|lines| {
        lines
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"))
            .collect()
    })
}

/// A valid file with a few bytes changed, added or taken away.
fn mutated_policy() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0u8..3);
    prop::collection::vec(edit, 1..6).prop_map(|edits| {
        let mut bytes = include_bytes!("../every_key.toml").to_vec();
        for (index, byte, kind) in edits {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #[test]
    fn no_file_makes_resolution_panic_or_colour_the_terminal(
        text in prop_oneof![odd_policy(), mutated_policy()]
    ) {
        let stage = Stage::new();
        if let Err(error) = stage.with_policy(&text) {
            let shown = error.to_string();
            prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        }
    }
}
