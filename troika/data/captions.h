// Generated videos with captions, a data set that needs no download.
//
// A video shows one to three events, one after the other, each for about the same number of frames.
// An event is one of eight things in one of six acts; successive events differ. The features of a
// frame are the sum of a vector for the thing, a vector for the act, and noise that is uniform in
// [-2, 2]. The vectors have elements +1 and -1, and are the same in all videos. The caption lists
// the events in their order: "THING ACT then THING ACT". A model must remember the events, and
// their order, to predict it.
#pragma once

#include "troika/data/dataset.h"

namespace troika::data {

// Words of captions, as tokens.
inline constexpr int64_t kNoWord = 0;  // after the end, in inputs
inline constexpr int64_t kBegin = 1, kEnd = 2, kThen = 3;
inline constexpr int64_t kFirstThing = 4, kThings = 8;
inline constexpr int64_t kFirstAct = kFirstThing + kThings, kActs = 6;
inline constexpr int64_t kWords = kFirstAct + kActs;

inline constexpr int64_t kMostEvents = 3;
// Tokens of the longest caption, with its end and without its beginning.
inline constexpr int64_t kCaptionLength = 3 * kMostEvents;

// Default numbers of videos.
inline constexpr int64_t kCaptionsTrain = 10'000;
inline constexpr int64_t kCaptionsValidation = 2'000;

struct CaptionsOptions {
  uint64_t seed = 0;
  int64_t frames = 16;         // >= 6
  int64_t feature_width = 64;  // >= 1
  int64_t count = 0;           // of videos
};

// Video i is a pure function of (seed, split, i, frames, feature_width), and is made when it is
// loaded. A batch has inputs float32 [n, frames, feature_width]; `captions` int64
// [n, kCaptionLength], which begins with kBegin; and targets int64 [n, kCaptionLength], the next
// token at each place, -100 (no target) after kEnd. Nothing is augmented.
class Captions final : public Dataset {
 public:
  // Throws Error(usage) for an option out of range.
  Captions(Split split, const CaptionsOptions& options);

  int64_t size() const override { return options_.count; }
  Batch load(std::span<const int64_t> indices,
             std::optional<uint64_t> augmentation_seed) const override;
  int64_t num_classes() const override { return kWords; }
  std::vector<int64_t> input_shape() const override {
    return {options_.frames, options_.feature_width};
  }
  std::vector<int64_t> target_shape() const override { return {kCaptionLength}; }

 private:
  Split split_;
  CaptionsOptions options_;
  std::vector<float> vectors_;  // [kThings + kActs, feature_width]
};

}  // namespace troika::data
