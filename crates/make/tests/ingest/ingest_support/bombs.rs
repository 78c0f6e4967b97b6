//! Small files that become large ones.

use std::path::Path;

use super::ffmpeg;

/// Writes a Matroska file of 25 pictures a second that all begin with the same `picture_bytes`
/// bytes. The file holds these once, as the prefix that the track's "header stripping" puts before
/// each picture; ffmpeg's output holds them once for each picture.
pub fn matroska(out: &Path, picture_bytes: usize, pictures: usize) {
    let one = out.with_extension("m2v");
    let source =
        ["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", "color=c=black:s=320x180:r=25:d=0.04"];
    let path = one.to_str().expect("test paths are UTF-8");
    ffmpeg::run("ffmpeg", &[&source[..], &["-c:v", "mpeg2video", "-f", "mpeg2video", path]].concat());
    let mut prefix = std::fs::read(&one).unwrap();
    std::fs::remove_file(&one).unwrap();
    assert!(prefix.len() < picture_bytes);
    prefix.resize(picture_bytes, 0);
    let head =
        [uint(0x4286, 1), uint(0x42f7, 1), uint(0x42f2, 4), uint(0x42f3, 8), element(0x4282, b"matroska")];
    let head = element(0x1a45_dfa3, &[head.concat(), uint(0x4287, 4), uint(0x4285, 2)].concat());
    let stripping = element(0x5034, &[uint(0x4254, 3), element(0x4255, &prefix)].concat());
    let encoding = element(0x6240, &[uint(0x5031, 0), uint(0x5032, 1), uint(0x5033, 0), stripping].concat());
    let size = element(0xe0, &[uint(0xb0, 320), uint(0xba, 180)].concat());
    let track = [
        uint(0xd7, 1),
        uint(0x73c5, 1),
        uint(0x83, 1),
        element(0x86, b"V_MPEG2"),
        uint(0x23_e383, 40_000_000),
    ];
    let track = element(0xae, &[track.concat(), size, element(0x6d80, &encoding)].concat());
    let info = [uint(0x2a_d7b1, 1_000_000), element(0x4d80, b"test"), element(0x5741, b"test")];
    let mut segment = [element(0x1549_a966, &info.concat()), element(0x1654_ae6b, &track)].concat();
    for first in (0..pictures).step_by(25) {
        let block = |n: usize| {
            let [high, low] = ((n - first) as u16 * 40).to_be_bytes();
            element(0xa3, &[0x81, high, low, 0x80, 0, 0, 0, 0])
        };
        let blocks = (first..pictures.min(first + 25)).flat_map(block).collect();
        segment.extend(element(0x1f43_b675, &[uint(0xe7, first as u64 * 40), blocks].concat()));
    }
    std::fs::write(out, [head, element(0x1853_8067, &segment)].concat()).unwrap();
}

/// Makes a QuickTime file of black PNG pictures with sides of `side` pixels: a few KB that are decoded to many MB.
pub fn quicktime(out: &Path, side: u32) {
    let source = format!("color=c=black:s={side}x{side}:r=1:d=2");
    let path = out.to_str().expect("test paths are UTF-8");
    let args = ["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &source];
    ffmpeg::run("ffmpeg", &[&args[..], &["-c:v", "png", "-pix_fmt", "gray", path]].concat());
}

/// An EBML element with a length of eight bytes.
fn element(id: u32, body: &[u8]) -> Vec<u8> {
    let id: Vec<u8> = id.to_be_bytes().into_iter().skip_while(|&byte| byte == 0).collect();
    [&id[..], &(body.len() as u64 | 1 << 56).to_be_bytes(), body].concat()
}

fn uint(id: u32, value: u64) -> Vec<u8> {
    element(id, &value.to_be_bytes())
}
