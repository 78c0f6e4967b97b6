use super::*;
use crate::bpf::{Alu, AsmError, Reg::*, Width};

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: BPF needs root");
    }
    root
}

fn returns(value: i32) -> Assembler {
    let mut a = Assembler::default();
    a.mov(R0, value);
    a.exit();
    a
}

#[test]
fn programs_of_both_kinds_run() {
    if !is_root() {
        return;
    }
    for (kind, value) in [(ProgramType::TcxIngress, -1), (ProgramType::Xdp, 2)] {
        let program = BpfProgram::load("test_prog", kind, returns(value)).unwrap();
        let run = TestRun { packet: &[0; 64], context: &[], repeat: 3 };
        assert_eq!(program.test_run(&run).unwrap().result, value);
        assert_eq!(program.verified_insns().unwrap(), 2);
    }
}

#[test]
fn load_of_invalid_program_returns_verifier_message() {
    if !is_root() {
        return;
    }
    let mut a = Assembler::default();
    a.load(Width::Double, R0, R9, 0);
    a.exit();
    let text = BpfProgram::load("test_bad", ProgramType::TcxIngress, a).unwrap_err().to_string();
    assert!(text.contains("test_bad") && text.contains("R9 !read_ok"), "{text}");
}

#[test]
fn load_with_unplaced_label_fails() {
    let mut a = Assembler::default();
    let nowhere = a.label();
    a.alu(Alu::Add, R1, 1);
    a.jump(nowhere);
    let fault = BpfProgram::load("test_open", ProgramType::Xdp, a).unwrap_err();
    let source = AsmError::Unplaced { at: 1, label: 0 };
    assert!(matches!(fault, BpfError::Assemble { source: found, .. } if found == source));
}

#[test]
fn test_run_with_short_packet_returns_error() {
    if !is_root() {
        return;
    }
    let program = BpfProgram::load("test_prog", ProgramType::TcxIngress, returns(0)).unwrap();
    let fault = program.test_run(&TestRun { packet: &[0; 3], context: &[], repeat: 1 }).unwrap_err();
    assert!(fault.to_string().contains("test_prog"), "{fault}");
}

#[test]
fn logs_are_cut_at_the_front() {
    let mut log = vec![b'a'; 5000];
    log[2999] = b'z';
    log[3000] = 0;
    let end = end_of(&log);
    assert_eq!((end.len(), end.ends_with('z')), (VERIFIER_SHOWN_BYTES, true));
}
