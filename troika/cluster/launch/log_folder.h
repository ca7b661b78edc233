// The folder that a launch writes its ranks' logs to.
#pragma once

#include <filesystem>
#include <string>

namespace troika::cluster {

class LogFolder {
 public:
  // Makes `folder`, or a temporary folder if `folder` is empty. The destructor removes a temporary
  // folder without logs.
  explicit LogFolder(std::filesystem::path folder);
  ~LogFolder();
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // `stem` is the beginning of the file's name, such as rank-3.
  std::filesystem::path log(const std::string& stem) const;
  // The file for the error report of a failing rank.
  std::filesystem::path error_file(const std::string& stem) const;
  // The file of the processes of a parameter server that have failed.
  std::filesystem::path ends() const { return path_ / "ends"; }
  // The folder for flight records of failing ranks.
  std::filesystem::path flight_record() const { return path_ / "flight-record"; }

  // Marks that ranks have written logs.
  void mark_logs() { has_logs_ = true; }
  bool has_logs() const { return has_logs_; }
  // Removes a temporary folder that has no flight records.
  void remove_temporary() const;

 private:
  std::filesystem::path path_;
  const bool is_temporary_;
  bool has_logs_ = false;
};

}  // namespace troika::cluster
