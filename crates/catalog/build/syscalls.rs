//! The lists and groups of system calls.

use crate::{Failure, check_reason, files, read, stem, table};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListFile {
    about: String,
    #[serde(default)]
    allow: Vec<Entry>,
    #[serde(default)]
    refuse: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    names: Vec<String>,
    why: String,
    #[serde(default)]
    when: Vec<Vec<ConditionText>>,
    errno: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConditionText {
    arg: u8,
    mask: Option<Value>,
    equals: Option<Value>,
    one_of: Option<Vec<Value>>,
    not_one_of: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Name(String),
}

/// Constants: TOML's integers have 63 bits, so the one with all bits is read from its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Constant {
    Number(u64),
    Text(String),
}

type Constants = BTreeMap<String, u64>;

pub(crate) fn emit(folder: &Path) -> Result<String, Failure> {
    let constants = constants(&folder.join("constants.toml"))?;
    let mut code = String::new();
    let lists = ["standard", "minimal"].map(|name| folder.join(format!("{name}.toml")));
    emit_lists(&mut code, "LISTS", &lists, &constants)?;
    emit_lists(&mut code, "PROXY", &[folder.join("proxy.toml")], &constants)?;
    emit_lists(
        &mut code,
        "READER",
        &[folder.join("reader.toml")],
        &constants,
    )?;
    emit_lists(&mut code, "KEYS", &[folder.join("keys.toml")], &constants)?;
    emit_lists(&mut code, "VMM", &[folder.join("vmm.toml")], &constants)?;
    emit_lists(
        &mut code,
        "VMM_KVM",
        &[folder.join("vmm.toml"), folder.join("vmm-kvm.toml")],
        &constants,
    )?;
    emit_lists(
        &mut code,
        "VM_FILES",
        &[folder.join("vm-files.toml")],
        &constants,
    )?;
    emit_lists(
        &mut code,
        "GROUPS",
        &files(&folder.join("groups"))?,
        &constants,
    )?;
    emit_lists(
        &mut code,
        "SYSTEMS",
        &files(&folder.join("systems"))?,
        &constants,
    )?;
    Ok(code)
}

fn constants(path: &Path) -> Result<Constants, Failure> {
    let table: BTreeMap<String, Constant> = read(path)?;
    table
        .into_iter()
        .map(|(name, constant)| {
            let value = match constant {
                Constant::Number(value) => Some(value),
                Constant::Text(text) => text
                    .strip_prefix("0x")
                    .and_then(|digits| u64::from_str_radix(digits, 16).ok()),
            };
            value
                .map(|value| (name.clone(), value))
                .ok_or_else(|| format!("{}: `{name}` is not a number", path.display()))
        })
        .collect()
}

fn emit_lists<P: AsRef<Path>>(
    code: &mut String,
    name: &str,
    paths: &[P],
    constants: &Constants,
) -> Result<(), Failure> {
    let _ = writeln!(code, "static {name}: &[SyscallList] = &[");
    for path in paths {
        let path = path.as_ref();
        let list: ListFile = read(path)?;
        check_reason(path, "about", &list.about)?;
        let _ = writeln!(
            code,
            "    SyscallList {{ name: {:?}, about: {:?}, rules: &[",
            stem(path),
            list.about
        );
        for (number, rule) in rules(path, &list, constants)? {
            let _ = writeln!(code, "        SyscallRule {{ number: {number}, {rule} }},");
        }
        code.push_str("    ] },\n");
    }
    code.push_str("];\n");
    Ok(())
}

/// The rules of one list by number, each as the fields of a `SyscallRule`.
fn rules(
    path: &Path,
    list: &ListFile,
    constants: &Constants,
) -> Result<BTreeMap<u32, String>, Failure> {
    let mut rules = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let entries = list
        .allow
        .iter()
        .map(|entry| (entry, false))
        .chain(list.refuse.iter().map(|entry| (entry, true)));
    for (entry, refused) in entries {
        let label = entry.names.join(", ");
        check_reason(path, &label, &entry.why)?;
        let action = action(entry, refused, constants)
            .map_err(|failure| format!("{}: `{label}`: {failure}", path.display()))?;
        for name in &entry.names {
            let number = table::number(name)
                .ok_or_else(|| format!("{}: unknown system call `{name}`", path.display()))?;
            if !seen.insert(name) {
                return Err(format!(
                    "{}: `{name}` stands in two entries",
                    path.display()
                ));
            }
            rules.insert(
                number,
                format!("name: {name:?}, why: {:?}, action: {action}", entry.why),
            );
        }
    }
    Ok(rules)
}

fn action(entry: &Entry, refused: bool, constants: &Constants) -> Result<String, Failure> {
    match (refused, entry.when.is_empty(), &entry.errno) {
        (true, true, Some(errno)) => Ok(format!("SyscallAction::Errno({})", errno_value(errno)?)),
        (true, ..) => Err("[[refuse]] takes `errno` and no `when`".into()),
        (false, true, None) => Ok("SyscallAction::Allow".into()),
        (false, false, Some(errno)) => {
            let mut alternatives = String::new();
            for alternative in &entry.when {
                let conditions = alternative
                    .iter()
                    .map(|text| condition(text, constants))
                    .collect::<Result<Vec<_>, _>>()?;
                if conditions.is_empty() {
                    return Err("an alternative without conditions allows everything".into());
                }
                let _ = write!(alternatives, "&[{}], ", conditions.join(", "));
            }
            Ok(format!(
                "SyscallAction::AllowIf {{ alternatives: &[{alternatives}], else_errno: {} }}",
                errno_value(errno)?
            ))
        }
        (false, ..) => Err("[[allow]] takes `when` and `errno` together or neither".into()),
    }
}

fn condition(text: &ConditionText, constants: &Constants) -> Result<String, Failure> {
    let arg = text.arg;
    if arg > 5 {
        return Err(format!("argument {arg} is out of range; expected 0 to 5"));
    }
    let values = |list: &[Value]| -> Result<String, Failure> {
        let mut values = list
            .iter()
            .map(|value| {
                let value = number(value, constants)?;
                u32::try_from(value).map_err(|_| format!("{value:#x} has more than 32 bits"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        values.sort_unstable();
        values.dedup();
        Ok(format!("&{values:?}"))
    };
    match (&text.mask, &text.equals, &text.one_of, &text.not_one_of) {
        (Some(mask), Some(equals), None, None) => {
            let (mask, value) = (number(mask, constants)?, number(equals, constants)?);
            if value & !mask != 0 {
                return Err(format!("{value:#x} has bits outside the mask {mask:#x}"));
            }
            Ok(format!(
                "Condition::MaskedEq {{ arg: {arg}, mask: {mask:#x}, value: {value:#x} }}"
            ))
        }
        (None, None, Some(list), None) => Ok(format!(
            "Condition::OneOf {{ arg: {arg}, values: {} }}",
            values(list)?
        )),
        (None, None, None, Some(list)) => Ok(format!(
            "Condition::NotOneOf {{ arg: {arg}, values: {} }}",
            values(list)?
        )),
        _ => Err("a condition is `mask` with `equals`, or `one-of`, or `not-one-of`".into()),
    }
}

fn number(value: &Value, constants: &Constants) -> Result<u64, Failure> {
    match value {
        Value::Number(number) => Ok(*number),
        Value::Name(name) => constants
            .get(name)
            .copied()
            .ok_or_else(|| format!("`{name}` is not in constants.toml")),
    }
}

fn errno_value(name: &str) -> Result<u16, Failure> {
    match name {
        // The call does nothing, and its caller hears that it did.
        "SUCCESS" => Ok(0),
        "EPERM" => Ok(1),
        "ENOENT" => Ok(2),
        "EACCES" => Ok(13),
        "EINVAL" => Ok(22),
        "ENOSYS" => Ok(38),
        "EPROTONOSUPPORT" => Ok(93),
        "EAFNOSUPPORT" => Ok(97),
        _ => Err(format!(
            "`{name}` is not an error number that rules may use"
        )),
    }
}
