"""What every HTTP port of the suite shares: limits on requests and connections."""
