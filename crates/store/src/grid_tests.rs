//! All data that the code can restore is restored, and nothing is made up.

use proptest::prelude::*;

use super::*;
use crate::format::superblock::Geometry;

/// Stripes of a title of pseudo-random packets, with their parity.
struct Striped {
    shape: StripeLayout,
    /// By stripe, unit.
    units: Vec<Vec<u8>>,
    data_sums: Vec<u16>,
    parity_sums: Vec<u16>,
}

impl Striped {
    fn new(shape: StripeLayout, seed: u64) -> Self {
        let code = Code::new(shape.k(), shape.m()).unwrap();
        let mut state = seed | 1;
        let (mut units, mut data_sums, mut parity_sums) = (Vec::new(), Vec::new(), Vec::new());
        for stripe in 0..shape.stripes() {
            let mut data = vec![vec![0; shape.unit_bytes()]; shape.k()];
            for (unit, bytes) in data.iter_mut().enumerate() {
                for (j, packet) in bytes.chunks_mut(PACKET).enumerate() {
                    let media = shape.media_in_unit(stripe, unit).saturating_sub(j * PACKET);
                    if media > 0 {
                        let packet = &mut packet[..media.min(PACKET)];
                        for word in packet.chunks_mut(4) {
                            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                            word.copy_from_slice(&state.to_be_bytes()[..4]);
                        }
                        data_sums.push(sum16(packet));
                    }
                }
            }
            let mut parity = vec![vec![0; shape.unit_bytes()]; shape.m()];
            let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            code.encode(&sources, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            parity_sums.extend(parity.iter().flat_map(|unit| unit.chunks(PACKET)).map(sum16));
            units.extend(data.into_iter().chain(parity));
        }
        Self { shape, units, data_sums, parity_sums }
    }

    fn per_stripe(&self) -> usize {
        self.shape.k() + self.shape.m()
    }

    fn grid(&self) -> Grid {
        let mut grid = Grid::new(self.shape).unwrap();
        grid.begin(0, self.shape.stripes(), &self.data_sums, &self.parity_sums);
        grid
    }

    /// A grid of all units with some packets changed: (stripe, unit, j).
    fn damaged(&self, mut damage: impl FnMut(u32, usize, usize, &mut [u8])) -> Grid {
        let mut grid = self.grid();
        for stripe in 0..self.shape.stripes() {
            for unit in 0..self.per_stripe() {
                let mut bytes = self.units[stripe as usize * self.per_stripe() + unit].clone();
                for (j, packet) in bytes.chunks_mut(PACKET).enumerate() {
                    damage(stripe, unit, j, packet);
                }
                grid.put(stripe, unit, &bytes);
            }
        }
        grid
    }

    fn assert_same(&self, grid: &Grid) {
        for stripe in 0..self.shape.stripes() {
            for unit in 0..self.per_stripe() {
                let expected = &self.units[stripe as usize * self.per_stripe() + unit];
                assert!(grid.unit(stripe, unit) == expected, "stripe {stripe}, unit {unit}");
                assert!(grid.is_whole(stripe, unit));
            }
        }
    }
}

/// On one member, with a last packet that is short.
fn shape(k: u16, m: u16, unit_packets: u32, packets: u64) -> StripeLayout {
    let geometry = Geometry { k, m, unit_packets, members: 1 };
    StripeLayout::new(&geometry, packets * PACKET as u64 - 188).unwrap()
}

fn swap_words(packet: &mut [u8]) {
    // The sum stays: only the code sees it.
    packet.swap(100, 102);
    packet.swap(101, 103);
}

proptest! {
    #[test]
    fn grid_solve_recovers_up_to_m_symbols_per_codeword(
        k in 1u16..7, m in 0u16..5, unit_packets in 1u32..4, packets in 1u64..60, seed: u64,
        patterns in prop::collection::vec(any::<u16>(), 200),
    ) {
        let shape = shape(k, m, unit_packets, packets);
        let striped = Striped::new(shape, seed);
        let pattern = |stripe: u32, j: usize| patterns[(stripe as usize * unit_packets as usize + j) % patterns.len()];
        let (k, m) = (usize::from(k), usize::from(m));
        let mut hopeless = Vec::new();
        for stripe in 0..shape.stripes() {
            for j in 0..unit_packets as usize {
                let lost = (0..k + m).filter(|&unit| {
                    pattern(stripe, j) >> unit & 1 != 0 && (unit >= k || shape.media_in_unit(stripe, unit) > j * PACKET)
                });
                if lost.count() > m {
                    hopeless.push((stripe, j));
                }
            }
        }
        let mut grid = striped.damaged(|stripe, unit, j, packet| {
            if pattern(stripe, j) >> unit & 1 != 0 {
                packet[7] ^= 0x20;
            }
        });
        let unsolved: Vec<_> = grid.solve(None).into_iter().map(|u| (u.stripe, u.j)).collect();
        prop_assert_eq!(&unsolved, &hopeless);
        if hopeless.is_empty() {
            striped.assert_same(&grid);
        }
        for stripe in 0..shape.stripes() {
            let wrong = grid.contradictions(stripe);
            prop_assert!(wrong.iter().all(|&j| hopeless.contains(&(stripe, j))));
        }
    }
}

#[test]
fn grid_contradictions_find_damage_hidden_from_sums() {
    let striped = Striped::new(shape(4, 2, 3, 30), 7);
    let mut grid = striped.damaged(|stripe, unit, j, packet| {
        if (stripe, unit, j) == (1, 2, 0) {
            swap_words(packet);
        }
    });
    assert!(grid.is_whole(1, 2), "the sum is right");
    assert_eq!(grid.solve(None), [], "nobody suspects anything");
    assert_eq!((grid.contradictions(0), grid.contradictions(1)), (vec![], vec![0]));
    assert_eq!(grid.solve(Some(&|_| 0)), [], "with two parities the wrong one stands out");
    striped.assert_same(&grid);
}

#[test]
fn grid_solve_with_one_parity_needs_suspect_file() {
    let striped = Striped::new(shape(4, 1, 2, 16), 9);
    let damage = |stripe: u32, unit: usize, j: usize, packet: &mut [u8]| {
        if (stripe, unit, j) == (1, 3, 1) {
            swap_words(packet);
        }
    };
    let mut grid = striped.damaged(damage);
    assert_eq!(grid.solve(Some(&|_| 1 << 3)), []);
    striped.assert_same(&grid);
    let mut grid = striped.damaged(|stripe, unit, j, packet| {
        damage(stripe, unit, j, packet);
        if (stripe, unit, j) == (1, 0, 1) {
            packet[0] ^= 1;
        }
    });
    let unsolved = grid.solve(Some(&|_| 1 << 3));
    assert_eq!(unsolved, [Unsolved { stripe: 1, j: 1, wrong: 1 }], "two wrong, one parity");
}
