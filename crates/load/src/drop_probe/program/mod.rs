//! The program: what happens to a packet, from the front of the frame to the verdict.
//!
//! `R6` is the packet, `R7` the slot, `R8` the place in the frame, `R9` the length of the datagram's payload; `R0` to `R5`
//! come and go. The verifier follows every path through the loop over a train's datagrams for each of its turns, so
//! paths meet again as soon as possible and nothing that differs between them is kept in a register.

mod clock;
mod sequence;

use millrace_core::limits;
use millrace_core::wire::frame;

use super::ProbeAction;
use super::layout::{RAW, Total, Word};
use super::ports::{KEY_BYTES, KEY_V4, KEY_V6, PORT_FREE, PORT_OF_ONE, PortWord};
use millrace_netio::bpf::{
    Alu, Assembler, Cond, Helper, Label, Map, MappedArray, Operand, PerCpuArray, Reg, Reg::*, Width,
};

/// Places on the stack, in bytes from the frame pointer.
mod stack {
    /// First 12 bytes of an RTP packet.
    pub(super) const HEADER: i16 = -16;
    /// Key of a look-up.
    pub(super) const KEY: i16 = -40;
    /// Pointer to this processor's totals.
    pub(super) const TOTALS: i16 = -48;
    /// When the packet came.
    pub(super) const ARRIVAL: i16 = -56;
    /// Payload of each datagram of a train but the last.
    pub(super) const STEP: i16 = -64;
    /// Where the packet's payload ends.
    pub(super) const END: i16 = -72;
    /// Datagrams of the train until now.
    pub(super) const TURN: i16 = -80;
    /// Length in the UDP header.
    pub(super) const UDP_LENGTH: i16 = -88;
    /// UDP header.
    pub(super) const UDP: i16 = -96;
    /// IP header without options.
    pub(super) const IP: i16 = -136;
    /// Destination port, as it lies in the packet.
    pub(super) const PORT: i16 = -144;
}

/// Fields of `struct __sk_buff`.
mod skb {
    pub(super) const LEN: i16 = 0;
    pub(super) const PKT_TYPE: i16 = 4;
    pub(super) const PROTOCOL: i16 = 16;
    pub(super) const DATA: i16 = 76;
    pub(super) const DATA_END: i16 = 80;
    #[cfg(test)]
    pub(super) const TSTAMP: i16 = 152;
    pub(super) const GSO_SIZE: i16 = 176;
}

/// Verdict "nothing to say": programs behind this one are asked, and then the stack gets the packet.
pub(super) const TCX_NEXT: i32 = -1;
/// Verdict "drop".
pub(super) const TCX_DROP: i32 = 2;

const PACKET_OTHERHOST: i32 = 3;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const PROTOCOL_UDP: i32 = 17;
const V4_HEADER_BYTES: i16 = frame::IPV4_HEADER_BYTES as i16;
const V6_HEADER_BYTES: i16 = frame::IPV6_HEADER_BYTES as i16;
const UDP_HEADER_BYTES: i16 = frame::UDP_HEADER_BYTES as i16;
const RTP_HEADER_BYTES: i16 = limits::RTP_HEADER_BYTES as i16;
/// More fragments, or an offset.
const V4_FRAGMENT: i32 = 0x3fff;
/// Datagrams of a train: the kernel makes trains of at most 128.
pub(super) const MAX_TURNS: i32 = 128;

/// The maps that the program refers to.
pub(super) struct Maps<'a> {
    pub(super) ports: &'a MappedArray,
    pub(super) streams: &'a Map,
    pub(super) slots: &'a MappedArray,
    pub(super) totals: &'a PerCpuArray,
}

/// What differs between programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) action: ProbeAction,
    /// Bytes of the link before the IP header.
    pub(super) header_bytes: u32,
    pub(super) arrival: ArrivalClock,
}

/// Where the time of arrival comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalClock {
    /// The monotonic clock.
    Clock,
    /// The time stamp in the packet's context: tests say when packets come.
    #[cfg(test)]
    Context,
}

/// The assembler and the places that several parts jump to.
struct Code {
    a: Assembler,
    /// Not ours.
    pass: Label,
    /// The IP header is read, `R8` and `R9` and the address are set.
    udp: Label,
    /// A datagram that does not have the configured form.
    malformed: Label,
    /// The packet counts for the sequence and has a timestamp in `R2`.
    timed: Label,
    /// The datagram is done.
    next: Label,
    /// The packet is done.
    finish: Label,
}

/// Builds the program.
pub(super) fn build(maps: &Maps<'_>, form: Form) -> Assembler {
    let mut a = Assembler::default();
    let mut label = || a.label();
    let (pass, udp, malformed) = (label(), label(), label());
    let (timed, next, finish) = (label(), label(), label());
    let mut c = Code { a, pass, udp, malformed, timed, next, finish };
    let header_bytes = form.header_bytes.cast_signed();
    c.begin(maps);
    c.parse_v4(header_bytes);
    c.parse_v6(header_bytes);
    c.find_slot(maps);
    c.measure_packet(form.arrival);
    let turn = c.begin_turns();
    c.begin_datagram();
    c.sequence();
    c.clock();
    c.end_turn(turn);
    c.end(form.action);
    c.a
}

/// `bytes`, cut into the widest pieces that a register holds.
fn pieces(bytes: i16) -> impl Iterator<Item = (i16, Width)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (width, step) = if bytes - at >= 8 { (Width::Double, 8) } else { (Width::Word, 4) };
        at += step;
        (at <= bytes).then_some((at - step, width))
    })
}

impl Code {
    /// `dst` = a word of the slot.
    fn get(&mut self, dst: Reg, word: Word) {
        self.a.load(Width::Double, dst, R7, word.offset());
    }

    /// A word of the slot = `value`.
    fn set(&mut self, word: Word, value: impl Into<Operand>) {
        self.a.store(Width::Double, R7, word.offset(), value);
    }

    /// Adds to a word of the slot. `scratch` is lost.
    fn add(&mut self, word: Word, value: impl Into<Operand>, scratch: Reg) {
        self.get(scratch, word);
        self.a.alu(Alu::Add, scratch, value);
        self.set(word, scratch);
    }

    fn get_stack(&mut self, dst: Reg, place: i16) {
        self.a.load(Width::Double, dst, R10, place);
    }

    fn set_stack(&mut self, place: i16, value: impl Into<Operand>) {
        self.a.store(Width::Double, R10, place, value);
    }

    /// `dst` = address of a place on the stack.
    fn stack_address(&mut self, dst: Reg, place: i16) {
        self.a.mov(dst, R10);
        self.a.alu(Alu::Add, dst, i32::from(place));
    }

    /// Adds one to a word of the totals. `R1` and `R2` are lost.
    fn count_total(&mut self, total: Total) {
        let offset = total as i16 * 8;
        self.get_stack(R1, stack::TOTALS);
        self.a.load(Width::Double, R2, R1, offset);
        self.a.alu(Alu::Add, R2, 1);
        self.a.store(Width::Double, R1, offset, R2);
    }

    /// Copies bytes of the packet to the stack; goes to `short` if there are too few. `R0` to `R5`
    /// are lost. `from` is a constant, or a register whose bound the verifier knows.
    ///
    /// Headers mostly lie in the packet's first piece, where they can be read at once; the helper finds them anywhere.
    fn load_front(&mut self, from: impl Into<Operand>, to: i16, bytes: i16, short: Label) {
        let (from, elsewhere, loaded) = (from.into(), self.a.label(), self.a.label());
        self.a.load(Width::Word, R2, R6, skb::DATA);
        self.a.load(Width::Word, R3, R6, skb::DATA_END);
        self.a.alu(Alu::Add, R2, from);
        self.a.mov(R4, R2);
        self.a.alu(Alu::Add, R4, i32::from(bytes));
        self.a.jump_if(Cond::Gt, R4, R3, elsewhere);
        for (at, width) in pieces(bytes) {
            self.a.load(width, R5, R2, at);
            self.a.store(width, R10, to + at, R5);
        }
        self.a.jump(loaded);
        self.a.place(elsewhere);
        self.load_anywhere(from, to, bytes, short);
        self.a.place(loaded);
    }

    /// The same by the helper, from any offset.
    fn load_anywhere(&mut self, from: impl Into<Operand>, to: i16, bytes: i16, short: Label) {
        self.a.mov(R2, from);
        self.a.mov(R1, R6);
        self.stack_address(R3, to);
        self.a.mov(R4, i32::from(bytes));
        self.a.call(Helper::SkbLoadBytes);
        self.a.jump_if(Cond::Ne, R0, 0, short);
    }

    /// Looks up the key on the stack; the value's address, or 0, is in `R0`.
    fn look_up(&mut self, map: &impl millrace_netio::bpf::AsMap) {
        self.a.load_map(R1, map);
        self.stack_address(R2, stack::KEY);
        self.a.call(Helper::MapLookup);
    }

    /// Counts the packet as seen and leaves packets for other hosts alone.
    fn begin(&mut self, maps: &Maps<'_>) {
        self.a.mov(R6, R1);
        self.a.store(Width::Word, R10, stack::KEY, 0);
        self.look_up(maps.totals);
        let has_totals = self.a.label();
        self.a.jump_if(Cond::Ne, R0, 0, has_totals);
        self.a.mov(R0, TCX_NEXT);
        self.a.exit();
        self.a.place(has_totals);
        self.set_stack(stack::TOTALS, R0);
        self.count_total(Total::Seen);
        self.a.load(Width::Word, R1, R6, skb::PKT_TYPE);
        self.a.jump_if(Cond::Eq, R1, PACKET_OTHERHOST, self.pass);
    }

    /// Finds address, place and length of the content of an IPv4 packet.
    fn parse_v4(&mut self, header_bytes: i32) {
        let other = self.a.label();
        self.a.load(Width::Word, R1, R6, skb::PROTOCOL);
        self.a.jump_if(Cond::Ne, R1, i32::from(ETHERTYPE_V4.to_be()), other);
        self.load_front(header_bytes, stack::IP, V4_HEADER_BYTES, self.pass);
        self.a.load(Width::Byte, R1, R10, stack::IP);
        self.a.mov(R8, R1);
        self.a.alu(Alu::Rsh, R1, 4);
        self.a.jump_if(Cond::Ne, R1, 4, self.pass);
        self.a.alu(Alu::And, R8, 15);
        self.a.alu(Alu::Lsh, R8, 2);
        self.a.jump_if(Cond::Lt, R8, i32::from(V4_HEADER_BYTES), self.pass);
        self.a.load(Width::Byte, R1, R10, stack::IP + 9);
        self.a.jump_if(Cond::Ne, R1, PROTOCOL_UDP, self.pass);
        self.a.load(Width::Half, R1, R10, stack::IP + 6);
        self.a.big_endian(R1, 16);
        self.a.jump_if(Cond::Set, R1, V4_FRAGMENT, self.pass);
        self.a.load(Width::Half, R9, R10, stack::IP + 2);
        self.a.big_endian(R9, 16);
        self.a.alu(Alu::Sub, R9, R8);
        self.a.alu(Alu::Add, R8, header_bytes);
        self.a.load(Width::Word, R1, R10, stack::IP + 16);
        self.set_stack(stack::KEY, R1);
        if cfg!(target_endian = "big") {
            self.a.store(Width::Word, R10, stack::KEY, R1);
            self.a.store(Width::Word, R10, stack::KEY + 4, 0);
        }
        self.set_stack(stack::KEY + 8, 0);
        self.a.store(Width::Half, R10, stack::KEY + 18, i32::from(KEY_V4));
        self.a.jump(self.udp);
        self.a.place(other);
    }

    /// Does the same for an IPv6 header. Packets with extension headers pass.
    fn parse_v6(&mut self, header_bytes: i32) {
        self.a.jump_if(Cond::Ne, R1, i32::from(ETHERTYPE_V6.to_be()), self.pass);
        self.load_front(header_bytes, stack::IP, V6_HEADER_BYTES, self.pass);
        self.a.load(Width::Byte, R1, R10, stack::IP);
        self.a.alu(Alu::Rsh, R1, 4);
        self.a.jump_if(Cond::Ne, R1, 6, self.pass);
        self.a.load(Width::Byte, R1, R10, stack::IP + 6);
        self.a.jump_if(Cond::Ne, R1, PROTOCOL_UDP, self.pass);
        self.a.load(Width::Half, R9, R10, stack::IP + 4);
        self.a.big_endian(R9, 16);
        self.a.mov(R8, i32::from(V6_HEADER_BYTES) + header_bytes);
        for half in [0, 8] {
            self.get_stack(R1, stack::IP + 24 + half);
            self.set_stack(stack::KEY + half, R1);
        }
        self.a.store(Width::Half, R10, stack::KEY + 18, i32::from(KEY_V6));
    }

    /// From the IP header (`R8`: where it ends, `R9`: bytes behind it) to the slot in `R7`.
    fn find_slot(&mut self, maps: &Maps<'_>) {
        const { assert!(KEY_BYTES == 20 && stack::KEY + 20 <= stack::HEADER) };
        self.a.place(self.udp);
        self.load_front(R8, stack::UDP, UDP_HEADER_BYTES, self.pass);
        self.a.load(Width::Half, R1, R10, stack::UDP + 4);
        self.a.big_endian(R1, 16);
        self.set_stack(stack::UDP_LENGTH, R1);
        self.a.load(Width::Half, R1, R10, stack::UDP + 2);
        self.a.store(Width::Half, R10, stack::KEY + 16, R1);
        let slot = self.look_up_stream(maps, R1);
        self.a.place(slot);
        self.a.store(Width::Word, R10, stack::KEY, R1);
        self.look_up(maps.slots);
        self.a.jump_if(Cond::Eq, R0, 0, self.pass);
        self.a.mov(R7, R0);
        self.count_total(Total::Watched);
    }

    /// From the key on the stack, whose port is in `port` too, to the slot in `R1`, at the label that is returned.
    ///
    /// Most ports are not watched, and most of the others are watched for one address: for these
    /// the table of ports is enough.
    fn look_up_stream(&mut self, maps: &Maps<'_>, port: Reg) -> Label {
        let (found, several, slot) = (self.a.label(), self.a.label(), self.a.label());
        self.a.store(Width::Word, R10, stack::PORT, port);
        self.a.load_map(R1, maps.ports);
        self.stack_address(R2, stack::PORT);
        self.a.call(Helper::MapLookup);
        self.a.jump_if(Cond::Eq, R0, 0, self.pass);
        self.a.load(Width::Double, R1, R0, PortWord::Watchers.offset());
        self.a.jump_if(Cond::Eq, R1, PORT_FREE, self.pass);
        self.a.jump_if(Cond::Ne, R1, PORT_OF_ONE, several);
        for (word, part) in [(PortWord::AddressFront, 0), (PortWord::AddressBack, 8)] {
            self.a.load(Width::Double, R1, R0, word.offset());
            self.get_stack(R2, stack::KEY + part);
            self.a.jump_if(Cond::Ne, R1, R2, self.pass);
        }
        self.a.load(Width::Double, R1, R0, PortWord::Family.offset());
        self.a.load(Width::Half, R2, R10, stack::KEY + 18);
        self.a.jump_if(Cond::Ne, R1, R2, self.pass);
        self.a.load(Width::Double, R1, R0, PortWord::Slot.offset());
        self.a.jump(slot);
        self.a.place(several);
        self.look_up(maps.streams);
        self.a.jump_if(Cond::Ne, R0, 0, found);
        self.set_stack(stack::KEY, 0);
        self.set_stack(stack::KEY + 8, 0);
        self.look_up(maps.streams);
        self.a.jump_if(Cond::Eq, R0, 0, self.pass);
        self.a.place(found);
        self.a.load(Width::Word, R1, R0, 0);
        slot
    }

    /// Lengths, arrival, and whether the packet is a train.
    fn measure_packet(&mut self, arrival: ArrivalClock) {
        self.get(R1, Word::Version);
        self.a.alu(Alu::Or, R1, 1);
        self.set(Word::Version, R1);
        // Malformed packets skip the loop: they are one datagram, whatever they say.
        let (fits, bad) = (self.a.label(), self.a.label());
        self.get_stack(R1, stack::UDP_LENGTH);
        self.a.jump_if(Cond::SignedGt, R1, R9, bad);
        self.a.mov(R9, R1);
        self.a.jump_if(Cond::Lt, R1, i32::from(UDP_HEADER_BYTES), bad);
        self.a.alu(Alu::Add, R1, R8);
        self.set_stack(stack::END, R1);
        self.a.load(Width::Word, R2, R6, skb::LEN);
        self.a.jump_if(Cond::Le, R1, R2, fits);
        self.a.place(bad);
        self.add(Word::Malformed, 1, R1);
        self.count_total(Total::Malformed);
        self.a.jump(self.finish);
        self.a.place(fits);
        let (short, loaded) = (self.a.label(), self.a.label());
        self.a.alu(Alu::Add, R8, i32::from(UDP_HEADER_BYTES));
        self.a.alu(Alu::Sub, R9, i32::from(UDP_HEADER_BYTES));
        self.load_front(R8, stack::HEADER, RTP_HEADER_BYTES, short);
        self.header_is_loaded(short, loaded);
        let is_train = self.a.label();
        self.a.load(Width::Word, R1, R6, skb::GSO_SIZE);
        self.a.jump_if(Cond::Ne, R1, 0, is_train);
        self.a.mov(R1, R9);
        self.a.place(is_train);
        self.set_stack(stack::STEP, R1);
        match arrival {
            ArrivalClock::Clock => self.a.call(Helper::KtimeGetNs),
            #[cfg(test)]
            ArrivalClock::Context => self.a.load(Width::Double, R0, R6, skb::TSTAMP),
        }
        self.set_stack(stack::ARRIVAL, R0);
        self.begin_wanted_run();
    }

    /// Where a header is that is too short, there is one that is no RTP.
    fn header_is_loaded(&mut self, short: Label, loaded: Label) {
        self.a.jump(loaded);
        self.a.place(short);
        self.set_stack(stack::HEADER, 0);
        self.set_stack(stack::HEADER + 8, 0);
        self.a.place(loaded);
    }

    /// The loop over the datagrams of a train begins; a packet that is none has one turn.
    fn begin_turns(&mut self) -> Label {
        self.a.mov(R1, 0);
        self.set_stack(stack::TURN, R1);
        let turn = self.a.label();
        self.a.place(turn);
        // The last one may be shorter.
        let whole = self.a.label();
        self.get_stack(R9, stack::END);
        self.a.alu(Alu::Sub, R9, R8);
        self.get_stack(R1, stack::STEP);
        self.a.jump_if(Cond::Le, R9, R1, whole);
        self.a.mov(R9, R1);
        self.a.place(whole);
        turn
    }

    /// One datagram: raw ones are only counted, RTP headers (on the stack by now) are looked at.
    fn begin_datagram(&mut self) {
        self.get(R1, Word::Media);
        let is_rtp = self.a.label();
        self.a.jump_if(Cond::Ne, R1, RAW, is_rtp);
        self.add(Word::Packets, 1, R1);
        // A datagram is due when the bytes before it have had their time: their number is its timestamp.
        self.get(R2, Word::PayloadBytes);
        self.add(Word::PayloadBytes, R9, R1);
        self.a.alu(Alu::Lsh, R2, 32);
        self.a.alu(Alu::Rsh, R2, 32);
        self.a.jump(self.timed);
        self.a.place(is_rtp);
        self.a.jump_if(Cond::Lt, R9, i32::from(RTP_HEADER_BYTES), self.malformed);
        self.a.load(Width::Byte, R1, R10, stack::HEADER);
        self.a.alu(Alu::Rsh, R1, 6);
        self.a.jump_if(Cond::Ne, R1, 2, self.malformed);
        self.a.load(Width::Byte, R1, R10, stack::HEADER + 1);
        self.a.alu(Alu::And, R1, 0x7f);
        self.get(R2, Word::Media);
        self.a.jump_if(Cond::Ne, R1, R2, self.malformed);
    }

    /// The datagram is done; the next of the train, if there is one.
    fn end_turn(&mut self, turn: Label) {
        let advance = self.a.label();
        self.a.jump(advance);
        self.a.place(self.malformed);
        self.add(Word::Malformed, 1, R1);
        self.count_total(Total::Malformed);
        self.a.place(self.next);
        self.a.place(advance);
        self.a.alu(Alu::Add, R8, R9);
        self.get_stack(R1, stack::END);
        self.a.jump_if(Cond::Ge, R8, R1, self.finish);
        self.get_stack(R1, stack::TURN);
        self.a.alu(Alu::Add, R1, 1);
        self.set_stack(stack::TURN, R1);
        self.a.jump_if(Cond::Ge, R1, MAX_TURNS, self.finish);
        let (short, loaded) = (self.a.label(), self.a.label());
        self.load_anywhere(R8, stack::HEADER, RTP_HEADER_BYTES, short);
        self.header_is_loaded(short, loaded);
        self.a.jump(turn);
    }

    /// The slot is whole again; the verdict.
    fn end(&mut self, action: ProbeAction) {
        self.a.place(self.finish);
        self.get(R1, Word::Version);
        self.a.alu(Alu::Or, R1, 1);
        self.a.alu(Alu::Add, R1, 1);
        self.set(Word::Version, R1);
        self.a.mov(R0, if action == ProbeAction::Drop { TCX_DROP } else { TCX_NEXT });
        self.a.exit();
        self.a.place(self.pass);
        self.a.mov(R0, TCX_NEXT);
        self.a.exit();
    }
}
