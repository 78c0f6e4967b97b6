//! One BPF instruction (RFC 9669): eight bytes of operation, registers, offset and immediate.

/// A register. `R10` is the frame pointer and can only be read; `R0` holds results, `R1` to `R5` arguments, and
/// calls keep `R6` to `R9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the numbers are the names")]
#[repr(u8)]
pub enum Reg {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
}

/// The second operand of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A constant, sign-extended to 64 bits.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Imm(value)
    }
}

/// Arithmetic. Division is unsigned, and by zero it gives zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are their meaning")]
#[repr(u8)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    /// Shift left.
    Lsh = 0x60,
    /// Shift right, zeros come in.
    Rsh = 0x70,
    Neg = 0x80,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
    /// Shift right, copies of the sign come in.
    Arsh = 0xc0,
}

/// Conditions of jumps, on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0x10,
    /// Greater, unsigned.
    Gt = 0x20,
    /// Greater or equal, unsigned.
    Ge = 0x30,
    /// Any common bit.
    Set = 0x40,
    /// Not equal.
    Ne = 0x50,
    /// Greater, signed.
    SignedGt = 0x60,
    /// Greater or equal, signed.
    SignedGe = 0x70,
    /// Less, unsigned.
    Lt = 0xa0,
    /// Less or equal, unsigned.
    Le = 0xb0,
    /// Less, signed.
    SignedLt = 0xc0,
    /// Less or equal, signed.
    SignedLe = 0xd0,
}

/// How much of memory is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 1 byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

/// Instruction classes and modes (RFC 9669 sections 3 to 5).
pub(super) mod code {
    pub(in crate::bpf) const LD_IMM64: u8 = 0x18;
    pub(in crate::bpf) const LDX_MEM: u8 = 0x61;
    pub(in crate::bpf) const ST_MEM: u8 = 0x62;
    pub(in crate::bpf) const STX_MEM: u8 = 0x63;
    pub(in crate::bpf) const ALU64: u8 = 0x07;
    pub(in crate::bpf) const JMP: u8 = 0x05;
    /// The second operand is a register.
    pub(in crate::bpf) const SOURCE_REG: u8 = 0x08;
    pub(in crate::bpf) const TO_BIG_ENDIAN: u8 = 0xdc;
    pub(in crate::bpf) const CALL: u8 = 0x85;
    pub(in crate::bpf) const EXIT: u8 = 0x95;
    /// Source "register" of a 64-bit constant that is the descriptor of a map.
    pub(in crate::bpf) const PSEUDO_MAP_FD: u8 = 1;
}

/// One instruction, or half of one with a 64-bit constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    pub(super) code: u8,
    pub(super) dst: u8,
    pub(super) src: u8,
    pub(super) offset: i16,
    pub(super) imm: i32,
}

impl Insn {
    pub(super) fn new(code: u8, dst: Reg, src: u8, offset: i16, imm: i32) -> Self {
        Self { code, dst: dst as u8, src, offset, imm }
    }

    /// An instruction whose second operand is a register or a constant.
    pub(super) fn with_operand(code: u8, dst: Reg, operand: Operand, offset: i16) -> Self {
        match operand {
            Operand::Reg(src) => Self::new(code | code::SOURCE_REG, dst, src as u8, offset, 0),
            Operand::Imm(imm) => Self::new(code, dst, 0, offset, imm),
        }
    }

    /// The eight bytes as this machine's kernel reads them.
    pub fn bytes(self) -> [u8; 8] {
        // Two four-bit fields; on big-endian machines the kernel's bit fields are the other way round.
        let registers =
            if cfg!(target_endian = "little") { self.src << 4 | self.dst } else { self.dst << 4 | self.src };
        let mut bytes = [self.code, registers, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.imm.to_ne_bytes());
        bytes
    }
}
