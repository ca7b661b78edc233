// An event file for TensorBoard with scalar summaries: `events.out.tfevents.<time>.<host>`.
//
// A TFRecord file (u64 length, its masked CRC-32C, bytes, their masked CRC-32C) of Event messages
// of tensorflow/core/util/event.proto. Only the fields in use are encoded.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "troika/base/file.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

class TensorBoardLogger : public Logger {
 public:
  // Makes a new file in `folder`, and the folder if it is missing. TensorBoard shows all files of a
  // folder as one run. With `resumed`, the file begins with a SessionLog of status START, at which
  // TensorBoard drops the later rows of earlier files. If a row was logged at the checkpoint's step
  // before the checkpoint, later rows of that step appear twice.
  explicit TensorBoardLogger(const std::filesystem::path& folder,
                             std::optional<LogPosition> resumed = {});

  // The format stores values with 32 bits.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  void write_record(std::string_view bytes);

  std::unique_ptr<File> file_;
};

}  // namespace troika::observe
