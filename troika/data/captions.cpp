#include "troika/data/captions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/data/fail.h"

namespace troika::data {

namespace {

constexpr uint64_t kSeedOfVectors = 0x63617074696f6e73;
constexpr double kNoise = 2;
constexpr int64_t kLeastFrames = 2 * kMostEvents;  // every event has a frame
constexpr int64_t kIgnoredTarget = -100;

struct Event {
  int64_t thing;
  int64_t act;

  bool operator==(const Event&) const = default;
};

int64_t below(Random& random, int64_t bound) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(bound)));
}

// Draws in a fixed order: two draws must not be arguments of one call, since compilers evaluate
// arguments in either order.
std::vector<Event> draw_events(Random& random) {
  std::vector<Event> events;
  const auto count = static_cast<size_t>(1 + below(random, kMostEvents));
  while (events.size() < count) {
    Event event{};
    event.thing = below(random, kThings);
    event.act = below(random, kActs);
    if (events.empty() || events.back() != event) events.push_back(event);
  }
  return events;
}

// Returns the frames at which events end: equal parts, each moved by up to a quarter of one.
std::vector<int64_t> draw_ends(Random& random, int64_t frames, size_t events) {
  const int64_t part = frames / static_cast<int64_t>(events);
  std::vector<int64_t> ends;
  for (size_t i = 1; i < events; ++i) {
    ends.push_back(static_cast<int64_t>(i) * part - part / 4 + below(random, part / 2 + 1));
  }
  ends.push_back(frames);
  return ends;
}

void write_caption(const std::vector<Event>& events, int64_t* captions, int64_t* targets) {
  std::vector<int64_t> words{kBegin};
  for (const Event& event : events) {
    if (words.size() > 1) words.push_back(kThen);
    words.push_back(kFirstThing + event.thing);
    words.push_back(kFirstAct + event.act);
  }
  std::fill_n(captions, kCaptionLength, kNoWord);
  std::fill_n(targets, kCaptionLength, kIgnoredTarget);
  std::ranges::copy(words, captions);
  words.push_back(kEnd);
  std::copy(words.begin() + 1, words.end(), targets);
}

}  // namespace

Captions::Captions(Split split, const CaptionsOptions& options) : split_(split), options_(options) {
  if (options.frames < kLeastFrames) {
    fail("frames of captions", std::to_string(options.frames), fmt::format(">= {}", kLeastFrames));
  }
  if (options.feature_width < 1) {
    fail("feature_width of captions", std::to_string(options.feature_width), ">= 1");
  }
  if (options.count < 1) fail("number of captions", std::to_string(options.count), ">= 1");
  Random random(kSeedOfVectors);
  for (int64_t i = 0; i < (kThings + kActs) * options.feature_width; ++i) {
    vectors_.push_back(random.below(2) == 0 ? -1.0F : 1.0F);
  }
}

Batch Captions::load(std::span<const int64_t> indices, std::optional<uint64_t>) const {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t width = options_.feature_width;
  Batch batch{at::empty({count, options_.frames, width}, at::kFloat),
              at::empty({count, kCaptionLength}, at::kLong)};
  at::Tensor captions = at::empty({count, kCaptionLength}, at::kLong);
  auto* feature = batch.inputs.data_ptr<float>();
  auto* target = batch.targets.data_ptr<int64_t>();
  auto* caption = captions.data_ptr<int64_t>();
  for (const int64_t index : indices) {
    TROIKA_CHECK(index >= 0 && index < size(), fmt::format("video {} of {}", index, size()));
    Random random(mix(options_.seed, static_cast<uint64_t>(split_), static_cast<uint64_t>(index)));
    const auto events = draw_events(random);
    const auto ends = draw_ends(random, options_.frames, events.size());
    write_caption(events, caption, target);
    caption += kCaptionLength;
    target += kCaptionLength;
    size_t now = 0;
    for (int64_t frame = 0; frame < options_.frames; ++frame) {
      if (frame == ends[now]) ++now;
      const float* thing = &vectors_[static_cast<size_t>(events[now].thing * width)];
      const float* act = &vectors_[static_cast<size_t>((kThings + events[now].act) * width)];
      for (int64_t i = 0; i < width; ++i) {
        const auto noise = static_cast<float>(random.uniform(-kNoise, kNoise));
        *feature++ = thing[i] + act[i] + noise;
      }
    }
  }
  batch.named.emplace("captions", std::move(captions));
  return batch;
}

}  // namespace troika::data
