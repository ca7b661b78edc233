// The codecs that make_codec() chooses from. Options are already validated.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>

#include "troika/comm/codec/codec.h"

namespace troika::comm::codec {

// The exact mean.
std::unique_ptr<Codec> make_none();

// The mean of the gradients rounded to Half or BFloat16; they are sent in that type and summed in
// float32. Finite values beyond the range of Half become the nearest finite value, so that the mean
// of finite gradients is finite. Rounding to nearest has a relative error of at most 2^-11
// (BFloat16: 2^-8) for normal values and no bias, so there is no error memory and no state.
std::unique_ptr<Codec> make_cast(c10::ScalarType type);

// Rank-r factors by one step of power iteration (Vogels, Karimireddy and Jaggi, NeurIPS 2019). For
// each part as a matrix M of shape[0] rows: P = orthonormal basis of mean(M Q), Q = mean(M^T P),
// result P Q^T. Parts with fewer than two dimensions, and parts too small to save half of the bytes
// ((rows + columns) * r * 2 >= rows * columns), are averaged uncompressed, in one message. A matrix
// sends (rows + columns) * r elements; a bucket takes two all-reduces.
//
// Two changes to the paper make the codec independent of the gradients' scale and let it recover
// from a gradient of low rank: Q is made orthonormal before use, and columns of Q that are linearly
// dependent or zero are redrawn.
std::unique_ptr<Codec> make_powersgd(const CodecOptions& options);

// Sends the max(1, density * n) elements of largest magnitude of the whole bucket, as values and
// indices of 4 bytes (8 for buckets that need them), and adds them up in the order of ranks (Stich,
// Cordonnier and Jaggi, NeurIPS 2018).
std::unique_ptr<Codec> make_top_k(const CodecOptions& options);

// 8-bit integers with one scale, absmax / 127, per block. Every rank averages its share of the
// blocks and sends the result quantised again. The error of the second quantisation, times the
// number of ranks, goes into the error memory of the rank that owns the share (two-sided error
// feedback as in Tang et al., ICML 2019). Uses a quarter of the bytes of float32, plus the scales.
std::unique_ptr<Codec> make_int8(const CodecOptions& options);

}  // namespace troika::comm::codec
