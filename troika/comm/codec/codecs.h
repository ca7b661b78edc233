// The codecs that make_codec() chooses from. Options are valid.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>

#include "troika/comm/codec/codec.h"

namespace troika::comm::codec {

// The exact mean.
std::unique_ptr<Codec> make_none();

// The mean of the gradients rounded to Half or BFloat16, which travel in that type and are summed
// in float32. Finite values beyond the range of Half become the nearest finite one, so that the
// mean of finite gradients is finite. Rounding to nearest errs by at most 2^-11 (BFloat16: 2^-8) of
// a normal value, without a preferred sign, so there is no error memory and no state.
std::unique_ptr<Codec> make_cast(c10::ScalarType type);

// Rank-r factors by one step of power iteration (Vogels, Karimireddy and Jaggi, NeurIPS 2019): each
// part as a matrix M of shape[0] rows, P = orthonormal basis of mean(M Q), Q = mean(M^T P),
// result P Q^T. Parts with fewer than two dimensions, and those too small to gain a factor of two
// ((rows + columns) * r * 2 >= rows * columns), are averaged as they are, in one message. Elements
// on the wire: (rows + columns) * r a matrix, in two all-reduces a bucket.
//
// Two departures from the paper make it independent of the gradients' scale and let it recover from
// a gradient of low rank: Q is made orthonormal before use, and columns of it that came out
// dependent or zero are drawn anew.
std::unique_ptr<Codec> make_powersgd(const CodecOptions& options);

// The max(1, density * n) elements of largest magnitude of the whole bucket, as values and indices
// of 4 bytes (8 for buckets that need them), added up in the order of ranks (Stich, Cordonnier and
// Jaggi, NeurIPS 2018).
std::unique_ptr<Codec> make_top_k(const CodecOptions& options);

// 8-bit integers with one scale a block, absmax / 127. Every rank averages its share of the blocks
// and returns it quantised again; the error of that goes, times the number of ranks, into the
// memory of the rank whose share it is (two-sided error feedback as in Tang et al., ICML 2019). A
// quarter of float32's bytes, plus the scales.
std::unique_ptr<Codec> make_int8(const CodecOptions& options);

}  // namespace troika::comm::codec
