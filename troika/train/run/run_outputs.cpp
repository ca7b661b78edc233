#include "troika/train/run/run_outputs.h"

#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/train/options/options.h"

namespace troika::train {

namespace {

constexpr const char* kIdFile = "run.id";

}  // namespace

std::string id_of_logged_run(const std::filesystem::path& folder) {
  const auto file = folder / kIdFile;
  return std::filesystem::exists(file) ? std::string(trim(read_file(file))) : "";
}

RunOutputs::RunOutputs(bool is_main, const std::filesystem::path& folder,
                       const TrainOptions& options, const std::string& id,
                       std::optional<observe::LogPosition> resumed) {
  if (!is_main) return;
  loggers_ = open_loggers(options.trainer.loggers, folder, options.run.name, resumed);
  if (!loggers_.empty() && !resumed) write_file_atomically(folder / kIdFile, id + "\n");
  if (options.trainer.enable_progress_bar) progress_.emplace();
}

void RunOutputs::log(int64_t step, const observe::MetricValues& values) {
  for (const auto& logger : loggers_) logger->log(step, values);
}

void RunOutputs::flush() {
  for (const auto& logger : loggers_) logger->flush();
}

void RunOutputs::start_progress(const std::string& label, int64_t total, int64_t done) {
  if (progress_) progress_->start(label, total, done);
}

void RunOutputs::show(const observe::MetricValues& metrics) {
  if (progress_) progress_->show_metrics(metrics);
}

void RunOutputs::advance(int64_t samples) {
  if (progress_) progress_->advance(1, samples);
}

void RunOutputs::add_loss(double loss) {
  if (progress_) progress_->add_loss(loss);
}

void RunOutputs::finish_progress() {
  if (progress_) progress_->finish();
}

}  // namespace troika::train
