use millrace_core::limits::EXTENT_BYTES;

use super::super::sample::SampleFiles;
use super::*;
use crate::meta::CrcFile;

struct Input {
    sample: SampleFiles,
    title: OpenTitle,
    meta: Vec<u8>,
}

impl Input {
    fn new(packet_bytes: usize, bytes: usize) -> Self {
        let sample = SampleFiles::new(packet_bytes, bytes);
        let title = OpenTitle::new(Box::new(sample.open()));
        let meta = std::fs::read(sample.meta_path()).unwrap();
        Self { sample, title, meta }
    }

    fn build(
        &self,
        extent: u32,
        damage: impl Fn(&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<ExtentContent, Damaged> {
        let geometry = self.title.geometry(extent).unwrap();
        let mut data = self.sample.extent_data(extent).to_vec();
        let mut meta = self.meta[geometry.meta.start as usize..geometry.meta.end as usize].to_vec();
        damage(&mut data, &mut meta);
        let mut out = vec![0xee; EXTENT_BYTES];
        let staged = Staged { data: &data, meta: &meta, ..Staged::default() };
        Builder::default().build((TitleRef(1), &self.title), &geometry, (extent, false), staged, &mut out)
    }
}

#[test]
fn build_with_damaged_payload_byte_returns_damaged() {
    let input = Input::new(1316, 300_000);
    let len = input.sample.extent_data(0).len();
    assert_eq!(input.build(0, |_, _| ()).unwrap().packets, 196);
    for at in (0..len).step_by(997).chain([0, 1315, 1316, len - 1]) {
        assert_eq!(input.build(0, |data, _| data[at] ^= 1), Err(Damaged), "byte {at}");
    }
}

#[test]
fn damaged_records_are_noticed() {
    let input = Input::new(1316, 300_000);
    for at in [0, 7, 1000, 4079, 4080, 4087] {
        assert_eq!(input.build(0, |_, meta| meta[at] ^= 0x80), Err(Damaged), "byte {at}");
    }
}

#[test]
fn too_few_or_too_many_bytes_are_noticed() {
    let input = Input::new(1316, 300_000);
    assert_eq!(input.build(0, |data, _| data.truncate(1316)), Err(Damaged));
    assert_eq!(input.build(0, |data, _| data.push(0)), Err(Damaged));
    assert_eq!(input.build(0, |data, _| data.clear()), Err(Damaged));
    let last = input.sample.extents() - 1;
    let content = input.build(last, |_, _| ()).unwrap();
    assert_eq!(usize::from(content.last_packet_bytes), 300_000 % 1316);
}

/// How fast extents are built from memory, without CRCs and with them, in turns: the price is the median of the rounds'
/// ratios. `cargo test --release -p millrace-store --lib fill_rate -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn fill_rate() {
    let input = Input::new(1316, 196 * 1316 * 16);
    let (mut out, mut builder) = (vec![0; EXTENT_BYTES * 64], Builder::default());
    let data: Vec<_> = (0..16).map(|extent| input.sample.extent_data(extent).to_vec()).collect();
    let crcs = crate::cache::crcs::file_of(&data.concat());
    let mut seconds = [const { Vec::new() }; 2];
    for round in 0..400 {
        let with_crcs = round % 2;
        let begun = std::time::Instant::now();
        for extent in 0..16u32 {
            let geometry = input.title.geometry(extent).unwrap();
            let meta = &input.meta[geometry.meta.start as usize..geometry.meta.end as usize];
            let slot = (round * 16 + extent as usize) % 64;
            let out = &mut out[slot * EXTENT_BYTES..][..EXTENT_BYTES];
            let title = (TitleRef(0), &input.title);
            let packets = geometry.first_packet..geometry.first_packet + geometry.packets;
            let range = CrcFile::block_range(packets.start, geometry.packets);
            let blocks = &crcs[range.start as usize..range.end as usize];
            assert!(builder.crcs.load(&packets, [blocks].into_iter().take(with_crcs)) == (with_crcs == 1));
            let staged = Staged { data: &data[extent as usize], meta, ..Staged::default() };
            builder.build(title, &geometry, (extent, false), staged, out).unwrap();
        }
        seconds[with_crcs].push(begun.elapsed().as_secs_f64());
    }
    let mut ratios: Vec<f64> =
        seconds[1].iter().zip(&seconds[0]).map(|(with, without)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    let bytes = (196 * 1316 * 16) as f64;
    for (what, mut seconds) in ["without CRCs", "with CRCs"].into_iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let [best, median] = [seconds[0], seconds[seconds.len() / 2]];
        let ns = median * 1e9 / f64::from(196 * 16);
        println!(
            "fill {what}: {:.2} GB/s best, {:.2} GB/s median, {ns:.0} ns a packet",
            bytes / best / 1e9,
            bytes / median / 1e9
        );
    }
    println!("fill: with CRCs takes {:.3} of the time", ratios[ratios.len() / 2]);
}
