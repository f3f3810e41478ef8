//! Power spectrum of evenly spaced points: radix-2 FFT (Cooley and Tukey 1965) where
//! the length is a power of two, the plain sum otherwise.

use std::f64::consts::TAU;
use std::ops::Range;

/// `|X_k|^2 / n^2` for k = 0 ..= n/2 of the points less their mean. By Parseval the
/// mean square of the centred points is the sum with every bin but the first and, for
/// even n, the last counted twice.
pub fn power_spectrum(points: &[f64]) -> Vec<f64> {
    let n = points.len();
    if n == 0 {
        return Vec::new();
    }
    let mean = super::statistics::mean(points);
    let mut re: Vec<f64> = points.iter().map(|x| x - mean).collect();
    let scale = 1.0 / (n as f64 * n as f64);
    if n.is_power_of_two() {
        let mut im = vec![0.0; n];
        transform(&mut re, &mut im);
        re.iter()
            .zip(&im)
            .take(n / 2 + 1)
            .map(|(a, b)| (a * a + b * b) * scale)
            .collect()
    } else {
        (0..=n / 2).map(|k| direct(&re, k) * scale).collect()
    }
}

/// `|X_k|^2` by its definition. The angle is taken modulo n, which keeps it exact.
fn direct(x: &[f64], k: usize) -> f64 {
    let n = x.len();
    let (re, im) = x.iter().enumerate().fold((0.0, 0.0), |(re, im), (i, v)| {
        let angle = TAU * ((i * k) % n) as f64 / n as f64;
        (re + v * angle.cos(), im - v * angle.sin())
    });
    re * re + im * im
}

/// In place; both slices have the same power-of-two length.
fn transform(re: &mut [f64], im: &mut [f64]) {
    let n = re.len();
    let bits = n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> (usize::BITS - bits.max(1));
        if bits > 0 && i < j {
            re.swap(i, j);
            im.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for block in 0..n / (2 * half) {
            let start = block * 2 * half;
            let (Some(re), Some(im)) = (
                re.get_mut(start..start + 2 * half),
                im.get_mut(start..start + 2 * half),
            ) else {
                return;
            };
            let (re_low, re_high) = re.split_at_mut(half);
            let (im_low, im_high) = im.split_at_mut(half);
            let low = re_low.iter_mut().zip(im_low);
            let high = re_high.iter_mut().zip(im_high);
            for (k, ((ar, ai), (br, bi))) in low.zip(high).enumerate() {
                let angle = -TAU * k as f64 / (2 * half) as f64;
                let (sin, cos) = angle.sin_cos();
                let (tr, ti) = (*br * cos - *bi * sin, *br * sin + *bi * cos);
                (*br, *bi) = (*ar - tr, *ai - ti);
                (*ar, *ai) = (*ar + tr, *ai + ti);
            }
        }
        half *= 2;
    }
}

/// Share of the power in `band` (Hz), against `max(power, floor^2)`. `spectrum` is
/// [`power_spectrum`] of `n` points that are `period` seconds apart.
pub(super) fn band_share(
    spectrum: &[f64],
    n: usize,
    period: f64,
    band: Range<f64>,
    floor: f64,
) -> f64 {
    let [mut inside, mut total] = [0.0; 2];
    for (k, power) in spectrum.iter().enumerate().skip(1) {
        let weight = if 2 * k == n { 1.0 } else { 2.0 };
        total += weight * power;
        if band.contains(&(k as f64 / (n as f64 * period))) {
            inside += weight * power;
        }
    }
    inside / total.max(floor * floor)
}
