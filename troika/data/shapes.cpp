#include "troika/data/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "troika/base/random.h"
#include "troika/data/outline.h"

namespace troika::data {

namespace {

constexpr int kSide = 32;
constexpr double kPi = std::numbers::pi;

std::vector<Point> arc(Point centre, double radius, double from, double to, int points) {
  std::vector<Point> out;
  for (int i = 0; i < points; ++i) {
    const double angle = from + (to - from) * i / points;
    out.push_back({centre.x + radius * std::cos(angle), centre.y + radius * std::sin(angle)});
  }
  return out;
}

std::vector<Point> circle(double radius) {
  return arc({}, radius, 0, 2 * kPi, 32);
}

std::vector<Point> square(double half) {
  return {{-half, -half}, {half, -half}, {half, half}, {-half, half}};
}

std::vector<Point> star(int tips, double outer, double inner) {
  std::vector<Point> out;
  for (int i = 0; i < 2 * tips; ++i) {
    const double radius = i % 2 == 0 ? outer : inner;
    out.push_back({radius * std::cos(kPi * i / tips), radius * std::sin(kPi * i / tips)});
  }
  return out;
}

// A disc of radius 1 minus a disc of radius 0.8 around (0.5, 0); the circles meet at x = 0.61.
std::vector<Point> crescent() {
  constexpr double kOffset = 0.5;
  constexpr double kBite = 0.8;
  constexpr double kMeetX = (1 - kBite * kBite + kOffset * kOffset) / (2 * kOffset);
  const double meet_y = std::sqrt(1 - kMeetX * kMeetX);
  const double outer = std::atan2(meet_y, kMeetX);
  const double inner = std::atan2(meet_y, kMeetX - kOffset);
  auto contour = arc({}, 1, outer, 2 * kPi - outer, 24);
  const auto back = arc({kOffset, 0}, kBite, 2 * kPi - inner, inner, 16);
  contour.insert(contour.end(), back.begin(), back.end());
  return contour;
}

// The classes in order, each about as large as a disc of radius 1. Each is symmetric along x, so
// that mirrored images look like images of the set.
const std::vector<Outline>& objects() {
  constexpr double kArm = 0.32;
  static const std::vector<Outline> all{
      {circle(0.9)},
      {circle(1.0), circle(0.55)},
      {square(0.8)},
      {square(0.9), square(0.48)},
      {{arc({}, 1.15, 0, 2 * kPi, 3)}},
      {{{-kArm, -1},
        {kArm, -1},
        {kArm, -kArm},
        {1, -kArm},
        {1, kArm},
        {kArm, kArm},
        {kArm, 1},
        {-kArm, 1},
        {-kArm, kArm},
        {-1, kArm},
        {-1, -kArm},
        {-kArm, -kArm}}},
      {star(5, 1.15, 0.48)},
      {crescent()},
      {{{-1, -0.25}, {0.1, -0.25}, {0.1, -0.75}, {1.1, 0}, {0.1, 0.75}, {0.1, 0.25}, {-1, 0.25}}},
      place({{{-0.9, -0.9}, {0.9, -0.9}, {0.9, -0.3}, {-0.3, -0.3}, {-0.3, 0.9}, {-0.9, 0.9}}},
            {.angle = -kPi / 4}),
  };
  return all;
}

using Colour = std::array<float, 3>;  // 0 .. 255

// Draws each channel uniformly in 0 .. brightest.
Colour draw_colour(Random& random, double brightest) {
  Colour colour{};
  for (float& channel : colour) channel = static_cast<float>(random.uniform(0, brightest));
  return colour;
}

// Draws a colour whose mean over the channels is at least `least` above that of `other`.
Colour draw_brighter(Random& random, const Colour& other, float least) {
  const auto mean = [](const Colour& c) { return (c[0] + c[1] + c[2]) / 3; };
  while (true) {
    const Colour colour = draw_colour(random, 255);
    if (mean(colour) >= mean(other) + least) return colour;
  }
}

// Draws in a fixed order: two draws must not be arguments of one call, since compilers evaluate
// arguments in either order.
class Painter {
 public:
  Painter(uint64_t seed, uint8_t* pixels) : random_(seed), pixels_(pixels) {}

  // Writes `object_class` to the pixels of `mask`, which are 0, that the object covers, unless it
  // is null.
  void paint(const Outline& object, uint8_t object_class, uint8_t* mask) {
    const Colour background = draw_colour(random_, kBackground);
    shade(background);
    const auto strokes = random_.below(kMostStrokes + 1);
    for (uint64_t i = 0; i < strokes; ++i) stroke();
    const double radius = random_.uniform(kSmallest, kLargest);
    const double stretch = random_.uniform(1 / kStretch, kStretch);
    const double margin = 0.9 * radius;
    const Outline placed = place(object, {.angle = random_.uniform(-kTurn, kTurn) - kPi / 2,
                                          .scale_x = radius * stretch,
                                          .scale_y = radius / stretch,
                                          .centre = {random_.uniform(margin, kSide - margin),
                                                     random_.uniform(margin, kSide - margin)}});
    fill(placed, draw_brighter(random_, background, kContrast));
    for (size_t i = 0; mask && i < coverage_.size(); ++i) {
      if (coverage_[i] >= 0.5F) mask[i] = object_class;
    }
    finish();
  }

 private:
  static constexpr double kSmallest = 7;
  static constexpr double kLargest = 12;
  static constexpr double kStretch = 1.12;
  static constexpr double kTurn = kPi / 4;
  static constexpr double kBackground = 150;  // maximum brightness
  static constexpr double kShading = 40;
  static constexpr uint64_t kMostStrokes = 2;
  static constexpr float kContrast = 60;
  static constexpr float kNoise = 10;  // standard deviation

  // Paints the background, a little brighter towards one side.
  void shade(const Colour& colour) {
    const double angle = random_.uniform(0, 2 * kPi);
    const double strength = random_.uniform(0, kShading) / kSide;
    const double slope_x = strength * std::cos(angle);
    const double slope_y = strength * std::sin(angle);
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const auto light =
            static_cast<float>((x - kSide / 2) * slope_x + (y - kSide / 2) * slope_y);
        for (size_t c = 0; c < 3; ++c) picture_[c][y * kSide + x] = colour[c] + light;
      }
    }
  }

  // Paints a thin bar of any colour behind the object, across the picture.
  void stroke() {
    const double thickness = random_.uniform(0.5, 1.0);
    const Outline placed =
        place({square(1)}, {.angle = random_.uniform(0, kPi),
                            .scale_x = random_.uniform(6, 2 * kSide),
                            .scale_y = thickness,
                            .centre = {random_.uniform(0, kSide), random_.uniform(0, kSide)}});
    fill(placed, draw_colour(random_, 255));
  }

  void fill(const Outline& outline, const Colour& colour) {
    cover(outline, kSide, coverage_.data());
    for (size_t c = 0; c < 3; ++c) {
      for (size_t i = 0; i < kSide * kSide; ++i) {
        picture_[c][i] += coverage_[i] * (colour[c] - picture_[c][i]);
      }
    }
  }

  // Adds noise from sums of four random bytes: close enough to normal, and cheap.
  void finish() {
    constexpr float kDeviation = 147.8F;  // of the sum of 4 bytes: sqrt(4 (256^2 - 1) / 12)
    constexpr float kMean = 4 * 127.5F;
    uint8_t* out = pixels_;
    for (const auto& channel : picture_) {
      for (size_t i = 0; i < channel.size(); i += 2) {
        const uint64_t word = random_();
        // Adds neighbouring bytes, then neighbouring sums, within each half of the word.
        const uint64_t pairs = (word & 0x00ff00ff00ff00ff) + (word >> 8 & 0x00ff00ff00ff00ff);
        const uint64_t sums = (pairs & 0x0000ffff0000ffff) + (pairs >> 16 & 0x0000ffff0000ffff);
        const std::array<uint32_t, 2> both{static_cast<uint32_t>(sums),
                                           static_cast<uint32_t>(sums >> 32)};
        for (size_t k = 0; k < 2; ++k) {
          const float noise = (static_cast<float>(both[k]) - kMean) * (kNoise / kDeviation);
          *out++ = static_cast<uint8_t>(std::clamp(channel[i + k] + noise + 0.5F, 0.0F, 255.0F));
        }
      }
    }
  }

  Random random_;
  uint8_t* pixels_;
  std::array<std::array<float, kSide * kSide>, 3> picture_;
  std::array<float, kSide * kSide> coverage_;
};

Images render(uint64_t seed, Split split, int64_t count, bool with_masks) {
  const ImageShape shape{.channels = 3, .height = kSide, .width = kSide};
  const auto classes = static_cast<int64_t>(objects().size());
  Images images{.shape = shape,
                .classes = classes,
                .pixels = std::vector<uint8_t>(static_cast<size_t>(count * shape.bytes())),
                .labels = std::vector<uint8_t>(static_cast<size_t>(count))};
  if (with_masks) {
    images.classes += 1;
    images.masks.resize(static_cast<size_t>(count * shape.plane()));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = i % classes;
    images.labels[static_cast<size_t>(i)] = static_cast<uint8_t>(label);
    Painter(mix(seed, static_cast<uint64_t>(split), static_cast<uint64_t>(i)),
            &images.pixels[static_cast<size_t>(i * shape.bytes())])
        .paint(objects()[static_cast<size_t>(label)], static_cast<uint8_t>(label + 1),
               with_masks ? &images.masks[static_cast<size_t>(i * shape.plane())] : nullptr);
  }
  return images;
}

}  // namespace

Images render_shapes(uint64_t seed, Split split, int64_t count) {
  return render(seed, split, count, /*with_masks=*/false);
}

Images render_shape_masks(uint64_t seed, Split split, int64_t count) {
  return render(seed, split, count, /*with_masks=*/true);
}

Normalisation shapes_normalisation() {
  return {{0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}};
}

}  // namespace troika::data
