use super::*;
use crate::recover::records::RETRANSMITTED;
use crate::rtt::Tick;

impl Board {
    /// Compares all counters with the records.
    pub(crate) fn verify(&self, slab: &Records) {
        let (mut index, mut is_pending, mut is_device) = (self.head, false, self.device == NONE);
        let (mut segments, mut sacked, mut flying_bytes, mut sacked_bytes, mut lost_bytes) = (0, 0, 0, 0, 0);
        let mut end: Option<Seq> = None;
        let mut last = NONE;
        while let Some(block) = slab.block(index) {
            is_pending |= index == self.pending;
            is_device |= index == self.device;
            let mut counted = *block;
            counted.recount();
            let counts = |block: &RecordBlock| (block.flying, block.lost, block.device, block.end_seq);
            assert_eq!(counts(&counted), counts(block), "counts of a block");
            assert!(block.start < block.end, "a block that nobody needs");
            assert!(is_device || block.device == 0, "the cursor of the device is too late");
            assert!(is_pending || block.pending().is_empty(), "the cursor of what is pending is too late");
            for record in &block.records[block.all()] {
                assert!(end.is_none_or(|end| end == record.seq), "a gap between records");
                end = Some(record.end());
            }
            for record in &block.records[block.pending()] {
                segments += 1;
                let len = u32::from(record.len);
                match record.flags & (SACKED | LOST) {
                    0 => flying_bytes += len,
                    LOST => lost_bytes += len,
                    SACKED => (sacked, sacked_bytes) = (sacked + 1, sacked_bytes + len),
                    flags => panic!("a record both lost and arrived: {flags}"),
                }
            }
            last = index;
            index = block.next;
        }
        assert_eq!(self.tail, last, "the last block");
        assert_eq!((self.segments, self.sacked_segments), (segments, sacked));
        let sums = (self.flying_bytes, self.sacked_bytes, self.lost_bytes);
        assert_eq!(sums, (flying_bytes, sacked_bytes, lost_bytes));
    }
}

const FIRST: Seq = Seq(u32::MAX - 12_345);

fn at(segment: u32) -> Seq {
    FIRST + segment * 100
}

/// Creates a board with `segments` segments of 100 bytes.
fn board(segments: u32) -> (Board, Records) {
    let (mut board, mut slab) = (Board::new(), Records::new(12));
    for segment in 0..segments {
        let record = Record { seq: at(segment), len: 100, in_device: 1, ..Record::default() };
        board.push(&mut slab, record).expect("room");
    }
    board.verify(&slab);
    (board, slab)
}

fn flags(board: &Board, slab: &Records) -> String {
    let mut all = String::new();
    let mut index = board.head;
    while let Some(block) = slab.block(index) {
        for record in &block.records[block.pending()] {
            all.push(match record.flags & (SACKED | LOST) {
                0 => '.',
                LOST => 'L',
                _ => 'S',
            });
        }
        index = block.next;
    }
    all
}

#[test]
fn blocks_come_and_go_and_none_is_lost() {
    let (mut board, mut slab) = board(50);
    assert_eq!(slab.free_blocks(), 12 - 4);
    let mut acked = Vec::new();
    board.advance(&mut slab, at(33) + 50, |record| acked.push(record.seq));
    assert_eq!(acked, (0..33).map(at).collect::<Vec<_>>(), "half a segment is no segment");
    assert_eq!(board.first_kept(&slab), Some(at(0)), "the device has them all");
    board.device_done(&mut slab, at(0), 3300);
    board.verify(&slab);
    assert_eq!(board.first_kept(&slab), Some(at(33)));
    assert_eq!(slab.free_blocks(), 12 - 2);
    board.device_done(&mut slab, at(33), 1700);
    assert_eq!(board.first_kept(&slab), Some(at(33)), "not acknowledged");
    board.advance(&mut slab, at(50), |_| {});
    board.verify(&slab);
    assert_eq!((slab.free_blocks(), board.segments, board.first_kept(&slab)), (12, 0, None));
}

#[test]
fn board_keeps_acknowledged_record_until_device_is_done() {
    let (mut board, mut slab) = board(20);
    board.sent_again(&mut slab, at(2), 100, Tick(9));
    board.device_done(&mut slab, at(0), 2000);
    board.advance(&mut slab, at(20), |_| {});
    board.verify(&slab);
    assert_eq!(board.first_kept(&slab), Some(at(2)), "its second copy is still there");
    board.device_done(&mut slab, at(2), 100);
    assert_eq!((board.first_kept(&slab), slab.free_blocks()), (None, 12));
}

#[test]
fn sack_marks_whole_segments_once() {
    let (mut board, mut slab) = board(40);
    let mut marked = Vec::new();
    board.sack(&mut slab, at(3) + 1, at(18) + 99, |record| marked.push(record.seq));
    board.verify(&slab);
    assert_eq!(marked, (4..18).map(at).collect::<Vec<_>>());
    board.sack(&mut slab, at(3), at(19), |record| marked.push(record.seq));
    board.verify(&slab);
    assert_eq!(marked.len(), 16, "3 and 18 are new");
    assert_eq!(flags(&board, &slab), format!("...{}{}", "S".repeat(16), ".".repeat(21)));
    board.forget_sacked(&mut slab);
    board.verify(&slab);
    assert_eq!((board.lost_bytes, board.sacked_segments), (1600, 0));
}

#[test]
fn lost_segments_are_found_sent_again_and_taken_back() {
    let (mut board, mut slab) = board(40);
    let losses = board.mark_lost(&mut slab, |record| {
        let segment = record.seq.since(FIRST) / 100;
        (segment < 33).then_some(segment % 16 == 5)
    });
    board.verify(&slab);
    assert_eq!((losses.bytes, slab.counts.lost), (200, 2));
    let (block, index) = board.find_lost(&slab).expect("a lost segment");
    assert_eq!(slab.blocks[block as usize].records[index].seq, at(5));
    board.sent_again(&mut slab, at(5), 100, Tick(77));
    board.verify(&slab);
    assert_eq!((board.lost_bytes, board.flying_bytes), (100, 3900));
    let (block, index) = board.find_lost(&slab).expect("the other");
    assert_eq!(slab.blocks[block as usize].records[index].seq, at(21));
    board.unmark_lost(&mut slab);
    board.verify(&slab);
    assert_eq!((board.lost_bytes, board.flying_bytes), (0, 4000));
    let first = slab.blocks[board.head as usize].records[5];
    assert!(first.is(RETRANSMITTED) && first.last_sent == Tick(77) && first.in_device == 2);
}

#[test]
fn split_in_full_and_partial_block_keeps_board_consistent() {
    for segments in [8, 15, 40] {
        for cut in [0, 3, 7] {
            let (mut board, mut slab) = board(segments);
            board.mark_lost(&mut slab, |record| Some(record.seq == at(cut)));
            let (block, index) = board.find_lost(&slab).expect("a lost segment");
            assert!(board.split(&mut slab, block, index, 30));
            board.verify(&slab);
            assert_eq!((board.segments, board.lost_bytes), (segments + 1, 100));
            board.sent_again(&mut slab, at(cut), 30, Tick(1));
            board.verify(&slab);
            assert_eq!(board.lost_bytes, 70, "the second part is lost still");
            board.device_done(&mut slab, at(0), 100 * segments as u16);
            board.device_done(&mut slab, at(cut), 30);
            board.advance(&mut slab, at(segments), |_| {});
            board.verify(&slab);
            assert_eq!(slab.free_blocks(), 12);
        }
    }
}

#[test]
fn push_to_full_slab_returns_full_until_advance() {
    let (mut board, mut slab) = (Board::new(), Records::new(1));
    let record = |segment| Record { seq: at(segment), len: 100, ..Record::default() };
    for segment in 0..15 {
        assert!(board.has_room(&slab));
        board.push(&mut slab, record(segment)).expect("room");
    }
    assert!(!board.has_room(&slab));
    assert_eq!(board.push(&mut slab, record(15)), Err(Full));
    assert_eq!(slab.counts.full, 1);
    board.verify(&slab);
    board.advance(&mut slab, at(15), |_| {});
    assert!(board.has_room(&slab));
    board.push(&mut slab, record(15)).expect("room again");
    board.verify(&slab);
}
