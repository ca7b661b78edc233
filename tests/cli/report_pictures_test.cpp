// The report in a browser: at the widths of a desktop and of a phone, light and dark.
#include <gmock/gmock.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using nlohmann::json;
using testing_support::run_program;

// A script for a copy of the page. It writes the positions of all elements, in CSS pixels, into the
// page's title. Details are open only while the width is measured.
constexpr const char* kSurvey = R"(<script>
addEventListener('load', () => {
  const box = e => { const r = e.getBoundingClientRect();
                     return {left: r.left, top: r.top, right: r.right, bottom: r.bottom}; };
  const boxes = (e, what) => [...e.querySelectorAll(what)].map(box);
  const details = [...document.querySelectorAll('details')];
  for (const one of details) one.open = true;
  const width = document.documentElement.scrollWidth;
  const clipped = [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth);
  for (const one of details) one.open = false;
  document.title = JSON.stringify({window: innerWidth, width: width,
    clipped: clipped.map(e => e.textContent.trim().slice(0, 60)),
    height: document.documentElement.scrollHeight,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    charts: [...document.querySelectorAll('.chart')].filter(c => !c.closest('details')).map(c => ({
      title: c.querySelector('figcaption').textContent,
      marks: box(c.querySelector('svg')), dots: c.querySelectorAll('.dot').length,
      x_ticks: boxes(c, '.x-ticks span'), y_ticks: boxes(c, '.y-ticks span'),
      x_label: boxes(c, '.x-label'), y_label: boxes(c, '.y-label')}))});
});
</script>)";

struct Colour {
  int red, green, blue;
  int brightness() const { return (red + green + blue) / 3; }
  int saturation() const { return std::max({red, green, blue}) - std::min({red, green, blue}); }
  bool differs_from(const Colour& other) const {
    return std::abs(red - other.red) + std::abs(green - other.green) + std::abs(blue - other.blue) >
           24;
  }
};

class Picture {
 public:
  explicit Picture(const std::filesystem::path& file) {
    image_.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_file(&image_, file.c_str())) return;
    image_.format = PNG_FORMAT_RGB;
    bytes_.resize(PNG_IMAGE_SIZE(image_));
    png_image_finish_read(&image_, nullptr, bytes_.data(), 0, nullptr);
  }
  int width() const { return static_cast<int>(image_.width); }
  int height() const { return static_cast<int>(image_.height); }
  Colour at(int x, int y) const {
    const auto place = 3 * (static_cast<size_t>(y) * image_.width + static_cast<size_t>(x));
    return {bytes_.at(place), bytes_.at(place + 1), bytes_.at(place + 2)};
  }
  // Pixels of a box, as survey() has them, for which `holds` is true.
  template <typename F>
  int count(const json& box, const F& holds) const {
    int found = 0;
    for (int y = box["top"].get<int>(); y < box["bottom"].get<int>(); ++y) {
      for (int x = box["left"].get<int>(); x < box["right"].get<int>(); ++x) {
        found += holds(at(x, y));
      }
    }
    return found;
  }

 private:
  png_image image_{};
  std::vector<png_byte> bytes_;
};

double extent(const json& box, const char* from, const char* to) {
  return box[to].get<double>() - box[from].get<double>();
}

// Expects that neighbouring texts, in the order of `from`, do not touch.
void expect_apart(std::vector<json> boxes, const char* from, const char* to) {
  std::ranges::sort(boxes, {}, [&](const json& box) { return box[from].get<double>(); });
  for (size_t i = 1; i < boxes.size(); ++i) {
    EXPECT_LE(boxes[i - 1][to].get<double>(), boxes[i][from].get<double>()) << boxes[i];
  }
}

// Expects the numbers beside their axis, and the label of the axis beyond them.
void expect_labelled(const json& chart) {
  const auto& marks = chart["marks"];
  EXPECT_GE(chart["x_ticks"].size(), 2u);
  EXPECT_GE(chart["y_ticks"].size(), 1u);
  expect_apart(chart["x_ticks"], "left", "right");
  expect_apart(chart["y_ticks"], "top", "bottom");
  for (const auto& tick : chart["x_ticks"]) {
    EXPECT_GE(tick["top"], marks["bottom"]);
    EXPECT_GT(tick["right"], marks["left"]);
    EXPECT_LT(tick["left"], marks["right"]);
  }
  for (const auto& tick : chart["y_ticks"]) {
    EXPECT_LE(tick["right"], marks["left"]);
    const double middle = tick["top"].get<double>() + extent(tick, "top", "bottom") / 2;
    EXPECT_GT(middle, marks["top"].get<double>() - 1);
    EXPECT_LT(middle, marks["bottom"].get<double>() + 1);
  }
  ASSERT_EQ(chart["x_label"].size(), 1u);
  EXPECT_GE(chart["x_label"][0]["top"], chart["x_ticks"][0]["bottom"]);
  EXPECT_GE(extent(chart["x_label"][0], "top", "bottom"), 10) << "legible";
  for (const auto& label : chart["y_label"]) {
    for (const auto& tick : chart["y_ticks"]) EXPECT_LE(label["right"], tick["left"]);
    EXPECT_GE(label["top"].get<double>(), marks["top"].get<double>() - 1);
  }
}

class ReportInABrowser : public testing::Test {
 protected:
  // Trains two ranks, and makes the page of their run.
  void train(const std::string& options) {
    const auto outcome = run_program(
        "cd " + folder_.path().string() + " && " + TROIKA_PROGRAM +
        " train --run.name=r --trainer.devices=2 --model.name=mlp --model.hidden_width=16 "
        "--data.validation_samples=24 --data.global_batch_size=12 " +
        options + " && exec " + TROIKA_PROGRAM + " report runs/r");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto page = read_file(folder_ / "runs/r/report.html");
    ASSERT_EQ(page.find("<script"), std::string::npos);
    write_file_atomically(folder_ / "page.html", page + kSurvey);
  }

  // Heights suffice for the whole page.
  void look_at_desktop(bool dark) { look(1280, 7000, dark); }
  void look_at_phone(bool dark) { look(400, 16000, dark); }

  void look(int width, int height, bool dark) {
    SCOPED_TRACE(std::to_string(width) + (dark ? " dark" : " light"));
    const auto picture_file = folder_ / "picture.png";
    std::filesystem::remove(picture_file);
    // Without a sandbox, for root in a container; the page is our own.
    const auto outcome = run_program(
        "cd " + folder_.path().string() +
        " && HOME=$PWD exec chromium-headless-shell --no-sandbox --disable-gpu "
        "--disable-dev-shm-usage --hide-scrollbars --user-data-dir=browser "
        "--blink-settings=preferredColorScheme=" +
        (dark ? "0" : "1") + " --window-size=" + std::to_string(width) + "," +
        std::to_string(height) + " --screenshot=picture.png --dump-dom file://$PWD/page.html");
    ASSERT_TRUE(std::filesystem::exists(picture_file))
        << "is chromium-headless-shell installed (scripts/install --tests)?\n"
        << outcome.err;
    const auto begin = outcome.out.find("<title>") + 7;
    const auto text = outcome.out.substr(begin, outcome.out.find("</title>") - begin);
    const auto survey = json::parse(text);
    const Picture picture(picture_file);
    EXPECT_EQ(picture.width(), width);
    EXPECT_EQ(survey["window"], width);
    EXPECT_EQ(survey["dark"], dark);
    EXPECT_LE(survey["width"], width) << "nothing sticks out, also when all is unfolded";
    EXPECT_EQ(survey["clipped"], json::array()) << "no table has to be scrolled";
    ASSERT_LE(survey["height"], picture.height()) << "a higher window shows all of the page";
    const Colour page = picture.at(2, 2);
    EXPECT_THAT(page.brightness(),
                dark ? testing::Matcher<int>(testing::Lt(48)) : testing::Gt(240));
    charts_ = survey["charts"];
    for (const auto& chart : charts_) {
      SCOPED_TRACE(chart["title"].get<std::string>());
      expect_labelled(chart);
      const auto& marks = chart["marks"];
      const double pixels = extent(marks, "left", "right") * extent(marks, "top", "bottom");
      EXPECT_GT(extent(marks, "left", "right"), 0.55 * std::min(width, 400));
      const int drawn = picture.count(marks, [&](const Colour& c) { return c.differs_from(page); });
      EXPECT_GT(drawn, 0.01 * pixels) << "empty";
      EXPECT_LT(drawn, 0.9 * pixels) << "filled";
      // Curves, dots and bars have colours; the grid is grey.
      EXPECT_GT(picture.count(marks, [](const Colour& c) { return c.saturation() > 60; }), 30);
      // Texts of the x axis differ from the page's background.
      const auto& label = chart["x_label"][0];
      EXPECT_GT(picture.count(label, [&](const Colour& c) { return c.differs_from(page); }), 20);
    }
  }

  std::vector<std::string> titles() const {
    std::vector<std::string> names;
    for (const auto& chart : charts_) names.push_back(chart["title"]);
    return names;
  }

  const TemporaryFolder folder_;
  json charts_;  // as look() saw them last
};

TEST_F(ReportInABrowser, ShowsAllOfALongRun) {
  train(
      "--data.train_samples=480 --trainer.max_epochs=3 --trainer.log_every_n_steps=1 "
      "--optim.schedule=cosine --throughput.enabled=true --statistics.every_n_steps=10 "
      "--trainer.trace=true --comm.bucket_megabytes=0.01 --comm.first_bucket_megabytes=0.01");
  for (const bool dark : {false, true}) {
    look_at_phone(dark);
    look_at_desktop(dark);
  }
  for (const char* title :
       {"Loss", "Accuracy", "Learning rate", "Throughput", "Model FLOPs utilization (MFU)",
        "gradient_norm", "Median step of each rank", "Peak of tensors in training steps",
        "Rates of the products, and the roof above them"}) {
    EXPECT_THAT(titles(), testing::Contains(title));
  }
  EXPECT_THAT(titles(), testing::Contains(testing::StartsWith("What each rank did in step ")));
}

TEST_F(ReportInABrowser, MarksThePointsOfAShortRun) {
  train("--data.train_samples=96 --trainer.max_epochs=3 --trainer.log_every_n_steps=2");
  look_at_phone(/*dark=*/false);
  ASSERT_THAT(titles(), testing::Contains("Loss"));
  for (const auto& chart : charts_) {
    if (chart["title"] == "Loss") {
      EXPECT_EQ(chart["dots"], 12 + 3 + 3) << "every second of 24 steps, and 3 epochs";
    }
  }
}

}  // namespace
}  // namespace troika
