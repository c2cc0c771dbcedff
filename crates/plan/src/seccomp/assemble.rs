//! Classic BPF, as far as a seccomp filter needs it.

use super::Instruction;

pub(super) const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(super) const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub(super) const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(super) const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
pub(super) const JUMP_NOT_LESS: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Offset of the system call number in the kernel's `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
/// Offset of the architecture.
pub(super) const ARCHITECTURE: u32 = 4;

/// Offset of the low half of an argument on a little-endian machine.
pub(super) fn argument_low(index: u8) -> u32 {
    16 + 8 * u32::from(index)
}

/// Offset of the high half.
pub(super) fn argument_high(index: u8) -> u32 {
    argument_low(index) + 4
}

pub(super) fn plain(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

pub(super) fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// Runs a program on made-up data: the tests' stand-in for the kernel.
#[cfg(test)]
pub(crate) fn run(program: &[Instruction], number: u32, architecture: u32, args: [u64; 6]) -> u32 {
    let load = |offset: u32| match offset {
        NUMBER => number,
        ARCHITECTURE => architecture,
        _ => {
            let argument = args[((offset - 16) / 8) as usize];
            if (offset - 16).is_multiple_of(8) {
                argument as u32
            } else {
                (argument >> 32) as u32
            }
        }
    };
    let (mut at, mut accumulator) = (0_usize, 0_u32);
    loop {
        let step = program[at];
        at += 1;
        match step.code {
            LOAD_WORD => accumulator = load(step.k),
            AND => accumulator &= step.k,
            JUMP => at += step.k as usize,
            JUMP_EQUAL | JUMP_NOT_LESS | JUMP_GREATER => {
                let taken = match step.code {
                    JUMP_EQUAL => accumulator == step.k,
                    JUMP_GREATER => accumulator > step.k,
                    _ => accumulator >= step.k,
                };
                at += usize::from(if taken { step.jt } else { step.jf });
            }
            RETURN => return step.k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}
