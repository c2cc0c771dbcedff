//! The filter of `config.json`. Ironcage's own is installed beside it; the kernel takes the stricter
//! answer of the two.

use crate::error::Error;
use crate::spec::{Seccomp, SyscallArgument};
use ironcage_catalog::syscalls;
use ironcage_plan::seccomp::Instruction;
use ironcage_plan::seccomp::configured::{Condition, Operator, Rule, Verdict, compile};

const EPERM: u16 = 1;
const ENOSYS: u16 = 38;
/// More than any engine writes; a filter has at most 4096 instructions.
const MOST_RULES: usize = 4096;

fn refuse(why: impl std::fmt::Display) -> Error {
    Error::refused("use the seccomp filter of config.json", why)
}

fn verdict(action: &str, errno: Option<u32>) -> Result<Verdict, Error> {
    let number = |default| match errno {
        None => Ok(default),
        Some(number) => {
            u16::try_from(number).map_err(|_| refuse(format!("error number {number} is too large")))
        }
    };
    Ok(match action {
        "SCMP_ACT_ALLOW" => Verdict::ALLOW,
        "SCMP_ACT_ERRNO" => Verdict::errno(number(EPERM)?),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Verdict::KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => Verdict::KILL_PROCESS,
        "SCMP_ACT_TRAP" => Verdict::TRAP,
        "SCMP_ACT_TRACE" => Verdict::trace(number(EPERM)?),
        "SCMP_ACT_LOG" => Verdict::LOG,
        "SCMP_ACT_NOTIFY" => {
            return Err(refuse(
                "SCMP_ACT_NOTIFY needs an agent at listenerPath, which this runtime does not serve",
            ));
        }
        other => return Err(refuse(format!("unknown action {other:?}"))),
    })
}

fn condition(argument: &SyscallArgument) -> Result<Condition, Error> {
    let operator = match argument.op.as_str() {
        "SCMP_CMP_NE" => Operator::NotEqual,
        "SCMP_CMP_LT" => Operator::Less,
        "SCMP_CMP_LE" => Operator::LessOrEqual,
        "SCMP_CMP_EQ" => Operator::Equal,
        "SCMP_CMP_GE" => Operator::GreaterOrEqual,
        "SCMP_CMP_GT" => Operator::Greater,
        "SCMP_CMP_MASKED_EQ" => Operator::MaskedEqual,
        other => return Err(refuse(format!("unknown comparison {other:?}"))),
    };
    let index = u8::try_from(argument.index).ok().filter(|index| *index < 6);
    Ok(Condition {
        argument: index.ok_or_else(|| refuse("a system call has six arguments"))?,
        operator,
        value: argument.value,
        second: argument.value_two,
    })
}

/// Makes the program. System calls of other architectures have no rule of their own: Ironcage's
/// filter, or this one, kills them.
pub(crate) fn program(filter: &Seccomp) -> Result<Vec<Instruction>, Error> {
    if !filter.listener_path.is_empty() {
        return Err(refuse("this runtime does not serve listenerPath"));
    }
    let default = match filter.default_action.as_str() {
        "SCMP_ACT_ERRNO" => verdict("SCMP_ACT_ERRNO", filter.default_errno_ret)?,
        other => verdict(other, None)?,
    };
    let mut rules = Vec::new();
    for entry in &filter.syscalls {
        let verdict = verdict(&entry.action, entry.errno_ret)?;
        let conditions = entry
            .args
            .iter()
            .map(condition)
            .collect::<Result<Vec<_>, _>>()?;
        // As runc has it: conditions on one argument are alternatives, on several they all hold.
        let repeated = conditions.iter().enumerate().any(|(index, one)| {
            let before = conditions.iter().take(index);
            before
                .into_iter()
                .any(|other| other.argument == one.argument)
        });
        // Names that this build does not know belong to other architectures or to newer kernels.
        for number in entry.names.iter().filter_map(|name| syscalls::number(name)) {
            let alternatives = match repeated {
                true => conditions.iter().map(|one| vec![*one]).collect(),
                false => vec![conditions.clone()],
            };
            for conditions in alternatives {
                rules.push(Rule {
                    number,
                    conditions,
                    verdict,
                });
            }
        }
        if rules.len() > MOST_RULES {
            return Err(refuse(format!("more than {MOST_RULES} rules")));
        }
    }
    // A newer libc asks for clone3 first and falls back on ENOSYS alone.
    let clone3 = syscalls::number("clone3");
    let named = |number| rules.iter().any(|rule| rule.number == number);
    if let Some(number) = clone3.filter(|number| !named(*number))
        && default != Verdict::ALLOW
        && default != Verdict::LOG
    {
        rules.push(Rule {
            number,
            conditions: Vec::new(),
            verdict: Verdict::errno(ENOSYS),
        });
    }
    Ok(compile(&rules, default))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Instruction>, Error> {
        program(&crate::spec::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_filter_of_an_engine_is_compiled_and_what_cannot_be_served_is_refused() {
        let good = r#"{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64"],
            "syscalls":[{"names":["read","no_such_call"],"action":"SCMP_ACT_ALLOW"},
            {"names":["personality"],"action":"SCMP_ACT_ALLOW",
             "args":[{"index":0,"value":0,"op":"SCMP_CMP_EQ"},{"index":0,"value":8,"op":"SCMP_CMP_EQ"}]}]}"#;
        assert!(parsed(good).unwrap().len() > 10);
        for (bad, why) in [
            (r#"{"defaultAction":"SCMP_ACT_NONE"}"#, "unknown action"),
            (r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
            (
                r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/x"}"#,
                "listenerPath",
            ),
            (
                r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],
                "action":"SCMP_ACT_ERRNO","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
                "six arguments",
            ),
        ] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
