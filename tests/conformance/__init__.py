"""The conformance kit over each sink of ours."""
