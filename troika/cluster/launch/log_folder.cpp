#include "troika/cluster/launch/log_folder.h"

#include <system_error>
#include <utility>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::cluster {

LogFolder::LogFolder(std::filesystem::path folder)
    : path_(std::move(folder)), is_temporary_(path_.empty()) {
  if (is_temporary_) {
    path_ = make_temporary_folder("troika-launch-");
  } else {
    make_folder(path_);
  }
}

LogFolder::~LogFolder() {
  if (!has_logs_) remove_temporary();
}

std::filesystem::path LogFolder::log(const std::string& stem) const {
  return path_ / (stem + ".log");
}

std::filesystem::path LogFolder::error_file(const std::string& stem) const {
  return path_ / (stem + ".error.json");
}

void LogFolder::remove_temporary() const {
  std::error_code ignored;  // a temporary folder
  if (!is_temporary_ || std::filesystem::exists(flight_record(), ignored)) return;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace troika::cluster
