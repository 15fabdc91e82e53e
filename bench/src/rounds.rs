//! Rounds that alternate between the sides of a comparison, and what is made of their figures.

/// Measures each of `N` sides once a round; the figures by side, then by round.
///
/// The round decides which side goes first, so that nothing that drifts (a growing table, a
/// processor that gets warm) favours one side.
pub(crate) fn alternate<const N: usize>(
    rounds: u32,
    mut measure: impl FnMut(usize, u32) -> anyhow::Result<f64>,
) -> anyhow::Result<[Vec<f64>; N]> {
    let mut figures = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..N {
            let side = (turn + round as usize) % N;
            figures[side].push(measure(side, round)?);
        }
    }
    Ok(figures)
}

/// Measures each of `N` sides twice a round, there and back: A B B A. What was measured, by side,
/// then by round.
///
/// Within a round, what drifts evenly hits every side alike; over the rounds, each side goes first
/// in turn.
pub(crate) fn mirrored<const N: usize, T>(
    rounds: u32,
    mut measure: impl FnMut(usize, u32) -> anyhow::Result<T>,
) -> anyhow::Result<[Vec<[T; 2]>; N]> {
    let mut figures = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds {
        let order: [usize; N] = std::array::from_fn(|turn| (turn + round as usize) % N);
        let mut there = Vec::with_capacity(N);
        for side in order {
            there.push(measure(side, round)?);
        }
        for (side, first) in order.into_iter().zip(there).rev() {
            figures[side].push([first, measure(side, round)?]);
        }
    }
    Ok(figures)
}

/// The quotient of each round.
pub(crate) fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(o, u)| o / u).collect()
}

/// The middle one, or the mean of the middle two; NaN of nothing.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let sorted = sorted(figures);
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.len() % 2) {
        (None, _) => f64::NAN,
        (Some(middle), 1) => *middle,
        (Some(upper), _) => (sorted[half - 1] + upper) / 2.0,
    }
}

/// The smallest figure that at least this part of all figures does not exceed; NaN of nothing.
pub(crate) fn percentile(figures: &[f64], part: f64) -> f64 {
    let sorted = sorted(figures);
    let rank = (part * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// The largest figure; NaN of nothing.
pub(crate) fn largest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NAN, f64::max)
}

/// The smallest figure; NaN of nothing.
pub(crate) fn smallest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NAN, f64::min)
}

fn sorted(figures: &[f64]) -> Vec<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_goes_first_in_turn() {
        let mut order = Vec::new();
        let figures: [Vec<f64>; 2] = alternate(3, |side, round| {
            order.push((round, side));
            Ok(f64::from(round) * 10.0 + side as f64)
        })
        .unwrap();
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        assert_eq!(figures, [vec![0.0, 10.0, 20.0], vec![1.0, 11.0, 21.0]]);
    }

    #[test]
    fn a_mirrored_round_goes_there_and_back() {
        let mut order = Vec::new();
        let figures: [Vec<[usize; 2]>; 2] = mirrored(2, |side, round| {
            order.push((round, side));
            Ok(order.len())
        })
        .unwrap();
        assert_eq!(order[..4], [(0, 0), (0, 1), (0, 1), (0, 0)]);
        assert_eq!(order[4..], [(1, 1), (1, 0), (1, 0), (1, 1)]);
        assert_eq!(figures, [vec![[1, 4], [6, 7]], vec![[2, 3], [5, 8]]]);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), 5.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let figures: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&figures, 0.95), 95.0);
        assert_eq!(percentile(&figures, 0.0), 1.0);
        assert_eq!(percentile(&figures, 1.0), 100.0);
        assert_eq!(percentile(&[7.0], 0.95), 7.0);
    }
}
