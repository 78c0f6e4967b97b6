//! Instructions in order, with labels for jumps.

use super::error::AsmError;
use super::insn::{Alu, Cond, Insn, Operand, Reg, Width, code};
use super::map::AsMap;

/// A place in the program that jumps lead to, forward or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Functions of the kernel that programs may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `R1` map, `R2` pointer to the key; pointer to the value or 0.
    MapLookup = 1,
    /// Nanoseconds of the monotonic clock.
    KtimeGetNs = 5,
    /// 32 random bits.
    RandomU32 = 7,
    /// `R1` packet, `R2` offset, `R3` pointer, `R4` length; 0 if the packet has enough bytes.
    SkbLoadBytes = 26,
    /// `R1` map of sockets or devices, `R2` key, `R3` flags: action of an XDP program.
    RedirectMap = 51,
}

/// Puts a program together.
///
/// ```
/// use millrace_netio::bpf::{Alu, Assembler, Cond, Reg};
/// let mut a = Assembler::default();
/// let end = a.label();
/// a.mov(Reg::R0, 0);
/// a.jump_if(Cond::Eq, Reg::R1, 0, end);
/// a.alu(Alu::Add, Reg::R0, 1);
/// a.place(end);
/// a.exit();
/// assert_eq!(a.finish().unwrap().len(), 4);
/// ```
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    placed_twice: Option<usize>,
}

impl Assembler {
    /// A label, to be placed once.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label is here.
    pub fn place(&mut self, label: Label) {
        if self.places[label.0].replace(self.insns.len()).is_some() {
            self.placed_twice.get_or_insert(label.0);
        }
    }

    /// `dst = dst op operand` on 64 bits.
    pub fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::with_operand(op as u8 | code::ALU64, dst, operand.into(), 0));
    }

    /// `dst = operand`.
    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Mov, dst, operand);
    }

    /// Turns the low 16, 32 or 64 bits from network order into this machine's, and the rest into zeros.
    pub fn big_endian(&mut self, dst: Reg, bits: i32) {
        self.insns.push(Insn::new(code::TO_BIG_ENDIAN, dst, 0, 0, bits));
    }

    /// `dst = *(base + offset)`, zero-extended.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        self.insns.push(Insn::new(code::LDX_MEM | width as u8, dst, base as u8, offset, 0));
    }

    /// `*(base + offset) = value`.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, value: impl Into<Operand>) {
        self.insns.push(match value.into() {
            Operand::Reg(src) => Insn::new(code::STX_MEM | width as u8, base, src as u8, offset, 0),
            Operand::Imm(imm) => Insn::new(code::ST_MEM | width as u8, base, 0, offset, imm),
        });
    }

    /// `dst = value`, all 64 bits.
    pub fn load_imm64(&mut self, dst: Reg, value: u64) {
        self.wide(dst, 0, value as u32, (value >> 32) as u32);
    }

    /// `dst` = the map. It must be open until the program is loaded, which then keeps it alive.
    pub fn load_map(&mut self, dst: Reg, map: &impl AsMap) {
        self.wide(dst, code::PSEUDO_MAP_FD, map.fd_number().cast_unsigned(), 0);
    }

    fn wide(&mut self, dst: Reg, src: u8, low: u32, high: u32) {
        self.insns.push(Insn::new(code::LD_IMM64, dst, src, 0, low.cast_signed()));
        self.insns.push(Insn::new(0, Reg::R0, 0, 0, high.cast_signed()));
    }

    /// Calls a helper: arguments in `R1` to `R5`, which are lost; the result is in `R0`.
    pub fn call(&mut self, helper: Helper) {
        self.insns.push(Insn::new(code::CALL, Reg::R0, 0, 0, helper as i32));
    }

    /// Ends the program with the result in `R0`.
    pub fn exit(&mut self) {
        self.insns.push(Insn::new(code::EXIT, Reg::R0, 0, 0, 0));
    }

    /// Goes on at `to`.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.insns.push(Insn::new(code::JMP, Reg::R0, 0, 0, 0));
    }

    /// Goes on at `to` if `left cond right`.
    pub fn jump_if(&mut self, cond: Cond, left: Reg, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.insns.push(Insn::with_operand(cond as u8 | code::JMP, left, right.into(), 0));
    }

    /// The program, with every jump filled in.
    ///
    /// # Errors
    /// When a label is nowhere, in two places or too far away.
    pub fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        if let Some(label) = self.placed_twice {
            return Err(AsmError::PlacedTwice { label });
        }
        for (at, label) in self.jumps {
            let place = self.places[label.0].ok_or(AsmError::Unplaced { at, label: label.0 })?;
            let distance = place as i64 - at as i64 - 1;
            self.insns[at].offset = i16::try_from(distance).map_err(|_| AsmError::TooFar { at, distance })?;
        }
        Ok(self.insns)
    }
}

#[cfg(test)]
#[path = "asm_tests.rs"]
mod tests;
