"""Modules that tests share: tables of cases, oracles, backends, generators of inputs. They contain no tests."""
