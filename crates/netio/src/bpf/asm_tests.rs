use super::Reg::*;
use super::*;

fn bytes(build: impl FnOnce(&mut Assembler)) -> Vec<u8> {
    let mut a = Assembler::default();
    build(&mut a);
    a.finish().unwrap().into_iter().flat_map(Insn::bytes).collect()
}

/// The bytes are written by hand from the tables of RFC 9669.
#[test]
#[cfg(target_endian = "little")]
fn encodings() {
    let cases: &[(Vec<u8>, &[u8])] = &[
        (bytes(|a| a.mov(R1, R10)), &[0xbf, 0xa1, 0, 0, 0, 0, 0, 0]),
        (bytes(|a| a.mov(R0, -1)), &[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        (bytes(|a| a.alu(Alu::Add, R2, -16)), &[0x07, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]),
        (bytes(|a| a.alu(Alu::Sub, R9, R8)), &[0x1f, 0x89, 0, 0, 0, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Mul, R3, 10)), &[0x27, 0x03, 0, 0, 10, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Div, R3, R0)), &[0x3f, 0x03, 0, 0, 0, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Or, R1, 1)), &[0x47, 0x01, 0, 0, 1, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::And, R1, 15)), &[0x57, 0x01, 0, 0, 15, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Lsh, R4, 48)), &[0x67, 0x04, 0, 0, 48, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Rsh, R4, R5)), &[0x7f, 0x54, 0, 0, 0, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Neg, R4, 0)), &[0x87, 0x04, 0, 0, 0, 0, 0, 0]),
        (bytes(|a| a.alu(Alu::Arsh, R4, 48)), &[0xc7, 0x04, 0, 0, 48, 0, 0, 0]),
        (bytes(|a| a.big_endian(R2, 16)), &[0xdc, 0x02, 0, 0, 16, 0, 0, 0]),
        (bytes(|a| a.load(Width::Word, R1, R6, 176)), &[0x61, 0x61, 176, 0, 0, 0, 0, 0]),
        (bytes(|a| a.load(Width::Byte, R1, R10, -16)), &[0x71, 0xa1, 0xf0, 0xff, 0, 0, 0, 0]),
        (bytes(|a| a.load(Width::Half, R1, R10, -2)), &[0x69, 0xa1, 0xfe, 0xff, 0, 0, 0, 0]),
        (bytes(|a| a.load(Width::Double, R1, R7, 8)), &[0x79, 0x71, 8, 0, 0, 0, 0, 0]),
        (bytes(|a| a.store(Width::Double, R7, 8, R1)), &[0x7b, 0x17, 8, 0, 0, 0, 0, 0]),
        (bytes(|a| a.store(Width::Word, R10, -40, 7)), &[0x62, 0x0a, 0xd8, 0xff, 7, 0, 0, 0]),
        (
            bytes(|a| a.load_imm64(R4, 0x1122_3344_5566_7788)),
            &[0x18, 0x04, 0, 0, 0x88, 0x77, 0x66, 0x55, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11],
        ),
        (bytes(|a| a.call(Helper::MapLookup)), &[0x85, 0, 0, 0, 1, 0, 0, 0]),
        (bytes(Assembler::exit), &[0x95, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (at, (built, expected)) in cases.iter().enumerate() {
        assert_eq!(built, expected, "case {at}");
    }
}

#[test]
fn maps_are_named_by_their_descriptor() {
    struct Seven;
    impl AsMap for Seven {
        fn fd_number(&self) -> i32 {
            7
        }
    }
    let built = bytes(|a| a.load_map(R1, &Seven));
    if cfg!(target_endian = "little") {
        assert_eq!(built, [0x18, 0x11, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(built.len(), 16);
}

#[test]
fn jumps_lead_forward_and_back() {
    let mut a = Assembler::default();
    let (again, end) = (a.label(), a.label());
    a.place(again);
    a.alu(Alu::Sub, R1, 1);
    a.jump_if(Cond::SignedLe, R1, R2, end);
    a.jump_if(Cond::Set, R1, 4, again);
    a.jump(again);
    a.place(end);
    a.exit();
    let offsets: Vec<i16> = a.finish().unwrap().iter().map(|insn| insn.offset).collect();
    assert_eq!(offsets, [0, 2, -3, -4, 0]);
}

#[test]
fn load_imm64_counts_as_two_instructions_for_jumps() {
    let mut a = Assembler::default();
    let end = a.label();
    a.jump(end);
    a.load_imm64(R0, 1);
    a.place(end);
    a.exit();
    assert_eq!(a.finish().unwrap()[0].offset, 2);
}

#[test]
fn faults_of_the_builder_are_named() {
    let mut a = Assembler::default();
    let nowhere = a.label();
    a.jump(nowhere);
    assert_eq!(a.finish().unwrap_err(), AsmError::Unplaced { at: 0, label: 0 });

    let mut a = Assembler::default();
    let twice = a.label();
    a.place(twice);
    a.exit();
    a.place(twice);
    assert_eq!(a.finish().unwrap_err(), AsmError::PlacedTwice { label: 0 });

    let mut a = Assembler::default();
    let far = a.label();
    a.jump(far);
    (0..32768).for_each(|_| a.exit());
    a.place(far);
    assert_eq!(a.finish().unwrap_err(), AsmError::TooFar { at: 0, distance: 32768 });
}
