use super::*;

/// A table section in one packet.
fn packet(pid: u16, table: u8, extension: u16, counter: u8, body: &[u8]) -> [u8; 188] {
    let length = 5 + body.len() + 4;
    let mut section = vec![table, 0xb0, length as u8];
    section.extend(extension.to_be_bytes());
    section.extend([0xc1, 0, 0]);
    section.extend(body);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Mpeg2, &section) as u32;
    section.extend(crc.to_be_bytes());
    let mut packet = [0xff; 188];
    packet[..5].copy_from_slice(&[0x47, 0x40 | (pid >> 8) as u8, pid as u8, 0x10 | counter & 15, 0]);
    packet[5..5 + section.len()].copy_from_slice(&section);
    packet
}

fn pat(counter: u8, programs: &[(u16, u16)]) -> [u8; 188] {
    let body: Vec<u8> = programs
        .iter()
        .flat_map(|&(n, pid)| [(n >> 8) as u8, n as u8, 0xe0 | (pid >> 8) as u8, pid as u8])
        .collect();
    packet(0, 0, 1, counter, &body)
}

fn pmt(counter: u8, pid: u16, program: u16, video_pid: u8) -> [u8; 188] {
    packet(pid, 2, program, counter, &[0xe1, video_pid, 0xf0, 0, 0x1b, 0xe1, video_pid, 0xf0, 0])
}

fn push(programs: &mut Programs, bytes: &[u8; 188]) -> TableNews {
    programs.push(TsPacket(bytes))
}

fn number(programs: &Programs) -> Option<u16> {
    programs.chosen().map(|pmt| pmt.program)
}

#[test]
fn programs_choose_first_program_of_pat() {
    let mut programs = Programs::default();
    let news = push(&mut programs, &pat(0, &[(7, 0x100), (8, 0x200)]));
    assert_eq!((news.pat, news.pids_changed, news.changed), (true, true, false));
    assert_eq!(programs.table_pids().collect::<Vec<_>>(), [0, 0x100, 0x200]);
    assert_eq!(push(&mut programs, &pmt(0, 0x200, 8, 9)), TableNews::default());
    let news = push(&mut programs, &pmt(0, 0x100, 7, 9));
    assert_eq!((news.pmt, news.changed, number(&programs)), (true, true, Some(7)));
    let news = push(&mut programs, &pmt(1, 0x100, 7, 9));
    assert_eq!((news.pmt, news.changed), (true, false), "the same table again is no change");
    let news = push(&mut programs, &pmt(2, 0x100, 7, 10));
    assert_eq!((news.pmt, news.changed), (true, true));
    let news = push(&mut programs, &pat(1, &[(7, 0x100), (8, 0x200)]));
    assert_eq!((news.pat, news.pids_changed), (true, false));
}

#[test]
fn programs_skip_first_program_without_pmt() {
    let mut programs = Programs::default();
    push(&mut programs, &pat(0, &[(7, 0x100), (8, 0x200), (9, 0x300)]));
    push(&mut programs, &pmt(0, 0x300, 9, 9));
    push(&mut programs, &pmt(0, 0x200, 8, 9));
    assert_eq!(number(&programs), None);
    let news = push(&mut programs, &pmt(1, 0x300, 9, 9));
    assert_eq!((news.changed, number(&programs)), (true, Some(8)));
}

#[test]
fn choose_now_takes_any_program_with_pmt() {
    let mut programs = Programs::default();
    assert!(!programs.choose_now() && !programs.has_pat());
    push(&mut programs, &pat(0, &[(7, 0x100), (8, 0x200)]));
    assert!(!programs.choose_now() && programs.has_pat());
    push(&mut programs, &pmt(0, 0x200, 8, 9));
    assert!(programs.choose_now());
    assert_eq!(number(&programs), Some(8));
}

#[test]
fn programs_with_new_pat_lacking_chosen_program_choose_again() {
    let mut programs = Programs::default();
    push(&mut programs, &pat(0, &[(7, 0x100)]));
    push(&mut programs, &pmt(0, 0x100, 7, 9));
    let news = push(&mut programs, &pat(1, &[(3, 0x400)]));
    assert_eq!((news.pids_changed, news.changed, number(&programs)), (true, true, None));
    let news = push(&mut programs, &pmt(0, 0x400, 3, 9));
    assert_eq!((news.changed, number(&programs)), (true, Some(3)));
}

#[test]
fn programs_keep_chosen_program_on_new_pmt_pid() {
    let mut programs = Programs::default();
    push(&mut programs, &pat(0, &[(7, 0x100), (8, 0x200)]));
    push(&mut programs, &pmt(0, 0x100, 7, 9));
    push(&mut programs, &pat(1, &[(8, 0x200), (7, 0x300)]));
    push(&mut programs, &pmt(0, 0x200, 8, 9));
    assert_eq!(number(&programs), None, "its table has not come from the new place");
    let news = push(&mut programs, &pmt(0, 0x300, 7, 9));
    assert_eq!((news.changed, number(&programs)), (true, Some(7)));
}

#[test]
fn programs_sharing_pmt_pid_are_distinguished() {
    let mut programs = Programs::default();
    push(&mut programs, &pat(0, &[(7, 0x100), (8, 0x100)]));
    push(&mut programs, &pmt(0, 0x100, 8, 9));
    push(&mut programs, &pmt(1, 0x100, 7, 10));
    assert_eq!(number(&programs), Some(7));
}
