// An event file for TensorBoard: `events.out.tfevents.<time>.<host>` of scalar summaries.
//
// A TFRecord file (u64 length, masked CRC-32C of it, bytes, masked CRC-32C of them) of Event
// messages of tensorflow/core/util/event.proto, of which only the fields needed are encoded.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "troika/base/file.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

class TensorBoardLogger : public Logger {
 public:
  // Makes a new file in `folder`, which is created when missing. TensorBoard shows all files of a
  // folder as one run. With `resumed` the file begins with a SessionLog of status START, at which
  // TensorBoard drops the later rows of the files before it. Where a row had been logged at the
  // step of the checkpoint, a later row of that step stays beside its repetition.
  explicit TensorBoardLogger(const std::filesystem::path& folder,
                             std::optional<LogPosition> resumed = {});

  // The format keeps 32 bits of each value.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  void write_record(std::string_view bytes);

  std::unique_ptr<File> file_;
};

}  // namespace troika::observe
